/* The LSTM cell in one pass over memory, forward and backward. No Python.h: loaded by ctypes, so a call holds no lock.
 *
 * Every matrix is row-major with its own distance between rows (in elements) and may be float32 or bfloat16 where a flag
 * says so; arithmetic is float32. Rows of gates hold four blocks of `dim`: input, forget, candidate, output.
 * The loops are plain C. The compiler vectorises them once per instruction set; the caller chooses one at run time.
 */
#include "cell.h"

typedef struct {
    int64_t rows, dim;
    const void *activated;
    const float *c_prev, *c;
    const void *dm;
    const float *dc;        /* gradient from the next time step, or NULL */
    void *dgates;           /* may be `activated` */
    float *dc_prev;         /* may be `dc` */
    float *dbias;           /* 4*dim, the sum of dgates over rows is added to it, or NULL */
    int64_t activated_stride, c_prev_stride, c_stride, dm_stride, dc_stride, dgates_stride, dc_prev_stride;
    int32_t activated_bf16, dm_bf16, dgates_bf16;
} Backward;

INLINE void forward_chunk(const float *const gate[4], const float *c_prev, float *c, float *m, float *const out[4],
                          float forget_bias, float clip, int keep, int64_t n) {
    const float *gi = gate[0], *gf = gate[1], *gg = gate[2], *go = gate[3];
    float *oi = out[0], *of = out[1], *og = out[2], *oo = out[3];
#pragma omp simd
    for (int64_t k = 0; k < n; k++) {
        float i = sigmoid(gi[k]), f = sigmoid(gf[k] + forget_bias), g = tangent(gg[k]), o = sigmoid(go[k]);
        float cell = f * c_prev[k] + i * g;
        int outside = fabsf(cell) > clip;
        cell = within(cell, -clip, clip);
        if (keep) {
            /* A sigmoid is never negative, so its sign is free to say that the clipped cell passes no gradient. */
            oi[k] = outside ? -i : i;
            of[k] = f;
            og[k] = g;
            oo[k] = o;
        }
        c[k] = cell;
        m[k] = o * tangent(cell);
    }
}

INLINE void forward(const Forward *a) {
    float in[4][CHUNK] __attribute__((aligned(64))), more[4][CHUNK] __attribute__((aligned(64)));
    float kept[4][CHUNK] __attribute__((aligned(64))), hidden[CHUNK] __attribute__((aligned(64)));
    for (int64_t row = 0; row < a->rows; row++) {
        const void *gates = row_of(a->gates, row, a->gates_stride, a->gates_bf16);
        const void *added = row_of(a->added, row, a->added_stride, a->added_bf16);
        void *activated = (void *)row_of(a->activated, row, a->activated_stride, a->activated_bf16);
        void *m = (void *)row_of(a->m, row, a->m_stride, a->m_bf16);
        for (int64_t at = 0; at < a->dim; at += CHUNK) {
            int64_t n = a->dim - at < CHUNK ? a->dim - at : CHUNK;
            const float *gate[4];
            float *out[4], *m_out = place(m, at, a->m_bf16, hidden);
            for (int b = 0; b < 4; b++) {
                int64_t column = b * a->dim + at;
                const float *x = take(gates, column, a->gates_bf16, in[b], n);
                if (added != NULL) {
                    const float *y = take(added, column, a->added_bf16, more[b], n);
#pragma omp simd
                    for (int64_t k = 0; k < n; k++) in[b][k] = x[k] + y[k];
                    x = in[b];
                }
                if (a->bias != NULL) {
                    const float *y = a->bias + column;
#pragma omp simd
                    for (int64_t k = 0; k < n; k++) in[b][k] = x[k] + y[k];
                    x = in[b];
                }
                gate[b] = x;
                out[b] = place(activated, column, a->activated_bf16, kept[b]);
            }
            const float *c_prev = a->c_prev + row * a->c_prev_stride + at;
            float *c = a->c + row * a->c_stride + at;
            if (activated != NULL) forward_chunk(gate, c_prev, c, m_out, out, a->forget_bias, a->clip, 1, n);
            else forward_chunk(gate, c_prev, c, m_out, out, a->forget_bias, a->clip, 0, n);
            for (int b = 0; b < 4; b++) give(activated, b * a->dim + at, a->activated_bf16, kept[b], n);
            give(m, at, a->m_bf16, hidden, n);
        }
    }
}

INLINE void backward_chunk(const float *const act[4], const float *c_prev, const float *c, const float *dm, const float *dc,
                           float *const out[4], float *dc_prev, int64_t n) {
    const float *ai = act[0], *af = act[1], *ag = act[2], *ao = act[3];
    float *di = out[0], *df = out[1], *dg = out[2], *d_o = out[3];
#pragma omp simd
    for (int64_t k = 0; k < n; k++) {
        uint32_t marked = bits_of(ai[k]);
        float i = from_bits(marked & 0x7FFFFFFFu), f = af[k], g = ag[k], o = ao[k], t = tangent(c[k]), d = dm[k];
        float cell = dc[k] + d * o * (1.0f - t * t);
        cell = (int32_t)marked < 0 ? 0.0f : cell;
        float previous = c_prev[k];
        d_o[k] = d * t * o * (1.0f - o);
        di[k] = cell * g * i * (1.0f - i);
        df[k] = cell * previous * f * (1.0f - f);
        dg[k] = cell * i * (1.0f - g * g);
        dc_prev[k] = cell * f;
    }
}

INLINE void backward(const Backward *a) {
    float in[4][CHUNK] __attribute__((aligned(64))), out_room[4][CHUNK] __attribute__((aligned(64)));
    float dm_room[CHUNK] __attribute__((aligned(64))), zeros[CHUNK] __attribute__((aligned(64))) = {0};
    for (int64_t row = 0; row < a->rows; row++) {
        const void *activated = row_of(a->activated, row, a->activated_stride, a->activated_bf16);
        const void *dm_row = row_of(a->dm, row, a->dm_stride, a->dm_bf16);
        void *dgates = (void *)row_of(a->dgates, row, a->dgates_stride, a->dgates_bf16);
        for (int64_t at = 0; at < a->dim; at += CHUNK) {
            int64_t n = a->dim - at < CHUNK ? a->dim - at : CHUNK;
            const float *act[4], *dm = take(dm_row, at, a->dm_bf16, dm_room, n);
            const float *dc = a->dc == NULL ? zeros : a->dc + row * a->dc_stride + at;
            float *out[4];
            for (int b = 0; b < 4; b++) {
                act[b] = take(activated, b * a->dim + at, a->activated_bf16, in[b], n);
                out[b] = place(dgates, b * a->dim + at, a->dgates_bf16, out_room[b]);
            }
            backward_chunk(act, a->c_prev + row * a->c_prev_stride + at, a->c + row * a->c_stride + at, dm, dc, out,
                           a->dc_prev + row * a->dc_prev_stride + at, n);
            for (int b = 0; b < 4; b++) {
                if (a->dbias != NULL) { /* out[b] is still in the cache */
                    float *sum = a->dbias + b * a->dim + at;
                    const float *part = out[b];
#pragma omp simd
                    for (int64_t k = 0; k < n; k++) sum[k] += part[k];
                }
                give(dgates, b * a->dim + at, a->dgates_bf16, out_room[b], n);
            }
        }
    }
}

#if CHOICE
/* The widest instruction set of this machine: 0 what the compiler takes for granted, 1 AVX2 with FMA, 2 AVX-512. */
EXPORT int32_t polyseme_instructions(void) {
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 ? (avx512 ? 2 : 1) : 0;
}
#else
EXPORT int32_t polyseme_instructions(void) { return 0; }
#endif

DISPATCH(polyseme_cell_forward, forward, Forward)
DISPATCH(polyseme_cell_backward, backward, Backward)

/* The LSTM cell in one pass over memory, forward and backward. No Python.h: loaded by ctypes, so a call holds no lock.
 *
 * Every matrix is row-major with its own distance between rows (in elements) and may be float32 or bfloat16 where a flag
 * says so; arithmetic is float32. Rows of gates hold four blocks of `dim`: input, forget, candidate, output.
 * The loops are plain C. The compiler vectorises them once per instruction set; the caller chooses one at run time.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))

enum { CHUNK = 256 }; /* columns worked on at a time: everything a chunk needs stays in the first-level cache */

typedef struct {
    int64_t rows, dim;
    const void *gates;      /* pre-activations */
    const void *added;      /* a second part of them, or NULL */
    const float *bias;      /* 4*dim, or NULL */
    const float *c_prev;
    float *c;               /* new cell, clipped */
    void *m;                /* sigmoid(o) * tanh(c) */
    void *activated;        /* gates after their non-linearities, for the backward pass, or NULL; may be `gates` */
    int64_t gates_stride, added_stride, c_prev_stride, c_stride, m_stride, activated_stride;
    int32_t gates_bf16, added_bf16, m_bf16, activated_bf16;
    float clip, forget_bias; /* clip is infinite where nothing is clipped */
} Forward;

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

INLINE uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
INLINE float from_bits(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }

INLINE uint16_t to_bf16(float x) { /* nearest, ties to even; NaN stays NaN */
    uint32_t b = bits_of(x);
    uint32_t rounded = (b + 0x7FFFu + ((b >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7FC0u | ((b >> 16) & 0x8000u) : rounded);
}

/* 2^n and the rest of t / unit, for n = round(t / unit). Adding 1.5 * 2^23 + 127 leaves n + 127 in the low bits of the sum. */
INLINE float power(float t, float per_unit, float *n) {
    float sum = t * per_unit + 12583039.0f;
    *n = sum - 12583039.0f;
    return from_bits(bits_of(sum) << 23);
}

INLINE float within(float x, float low, float high) { /* NaN stays NaN */
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* 1 / (1 + exp(-x)). Results below 2^-126 become zero: 2^n is infinite then. */
INLINE float sigmoid(float x) {
    float n, t = within(x, -88.9f, 87.0f);
    float scale = power(t, -1.44269504f, &n);
    float r = (t + n * 0.693359375f) - n * 2.12194440e-4f; /* ln 2 in two parts; the first product is exact */
    float e = -0.00836925022f + r * 0.00138204684f; /* exp(-r), minimax */
    e = 0.49999994f + r * (-0.166665167f + r * (0.0416682847f + r * e));
    e = 1.0f + r * (-1.0f + r * e);
    return 1.0f / (1.0f + scale * e);
}

/* tanh(x) = E / (E + 2), E = exp(2 x) - 1, computed without cancellation near 0. */
INLINE float tangent(float x) {
    float n, t = within(x, -20.0f, 20.0f);
    float scale = power(t, 2.88539008f, &n);
    float r = t - n * 0.34657359f;
    float e = 0.66667891f + r * (0.267740041f + r * 0.0887799859f); /* (exp(2 r) - 1) / r, minimax */
    e = 2.0f + r * (1.99999988f + r * (1.33332336f + r * e));
    e = scale * (r * e) + (scale - 1.0f);
    return e / (e + 2.0f);
}

/* n numbers from column `at` on: in place where they are float32, else widened into `room`. */
INLINE const float *take(const void *row, int64_t at, int bf16, float *room, int64_t n) {
    if (!bf16) return (const float *)row + at;
    const uint16_t *from = (const uint16_t *)row + at;
#pragma omp simd
    for (int64_t k = 0; k < n; k++) room[k] = from_bits((uint32_t)from[k] << 16);
    return room;
}

/* Where to write n numbers bound for column `at`; `give` delivers them if that was not the place itself. */
INLINE float *place(void *row, int64_t at, int bf16, float *room) {
    return row == NULL || bf16 ? room : (float *)row + at;
}

INLINE void give(void *row, int64_t at, int bf16, const float *room, int64_t n) {
    if (row == NULL || !bf16) return;
    uint16_t *to = (uint16_t *)row + at;
#pragma omp simd
    for (int64_t k = 0; k < n; k++) to[k] = to_bf16(room[k]);
}

INLINE const void *row_of(const void *base, int64_t row, int64_t stride, int bf16) {
    return base == NULL ? NULL : (const char *)base + row * stride * (bf16 ? 2 : 4);
}

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

static void forward_plain(const Forward *a) { forward(a); }
static void backward_plain(const Backward *a) { backward(a); }

#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"), min_vector_width(512)))
#else
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")))
#endif
#define AVX2 __attribute__((target("avx2,fma")))
AVX512 static void forward_avx512(const Forward *a) { forward(a); }
AVX512 static void backward_avx512(const Backward *a) { backward(a); }
AVX2 static void forward_avx2(const Forward *a) { forward(a); }
AVX2 static void backward_avx2(const Backward *a) { backward(a); }

/* The widest instruction set of this machine: 0 what the compiler takes for granted, 1 AVX2 with FMA, 2 AVX-512. */
EXPORT int32_t polyseme_instructions(void) {
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 ? (avx512 ? 2 : 1) : 0;
}

EXPORT void polyseme_cell_forward(int32_t instructions, const Forward *a) {
    instructions == 2 ? forward_avx512(a) : instructions == 1 ? forward_avx2(a) : forward_plain(a);
}

EXPORT void polyseme_cell_backward(int32_t instructions, const Backward *a) {
    instructions == 2 ? backward_avx512(a) : instructions == 1 ? backward_avx2(a) : backward_plain(a);
}
#else
EXPORT int32_t polyseme_instructions(void) { return 0; }
EXPORT void polyseme_cell_forward(int32_t instructions, const Forward *a) { (void)instructions; forward_plain(a); }
EXPORT void polyseme_cell_backward(int32_t instructions, const Backward *a) { (void)instructions; backward_plain(a); }
#endif

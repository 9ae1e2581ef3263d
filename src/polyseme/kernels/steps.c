/* The steps of one layer of one direction for few rows: products of few rows with a weight, the cell, the projection.
 *
 * A weight lies as oneDNN lays it out: blocks of 64 outputs, in each block one input after the other with its 64 weights side
 * by side; in bfloat16 two inputs after the other with 64 pairs. An output is summed one input after the other, in sections that
 * are added up, as oneDNN does, so that a row has the same bits here and there. A step takes as long as reading the weights.
 */
#include "cell.h"

#if CHOICE
#include <immintrin.h>
#endif
#if CHOICE && (__GNUC__ >= 11 || __clang_major__ >= 9)
#define DOTS 1
#define AVX512_DOTS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))
#else
#define DOTS 0
#endif

enum { BLOCK = 64, ROWS = 4 };

typedef struct {
    const void *blocks;     /* blocks x depth x BLOCK, aligned; what pads the last block and the depth is zero */
    int64_t outputs, inputs, depth, section; /* in bfloat16 inputs and section are even */
} Weight;

typedef struct {
    Weight weight;
    int64_t rows;
    const void *x;          /* rows x inputs */
    void *out;              /* rows x outputs */
    float limit;            /* of the absolute value of what is written */
    int32_t bf16, dots;     /* of weight, x and out; whether the processor's bfloat16 products are to be used */
} Product;

typedef struct {
    Weight recurrent, projection; /* projection.blocks is NULL where there is none */
    int64_t steps, dim, width;
    const int64_t *counts;  /* how many rows each step has, never more than the step before */
    const void *before;     /* rows x width: the state before */
    const void *added;      /* 4*dim for each row of each step: their inputs' part of the gates */
    const float *bias;      /* 4*dim */
    float *c;               /* rows x dim: the cells before, replaced by those after */
    void *gates, *inner;    /* room for rows x 4*dim and rows x dim */
    void *hidden;           /* width for each row of each step: the outputs */
    float cell_clip, projection_clip, forget_bias; /* clips are infinite where nothing is clipped */
    int32_t bf16, dots;     /* all matrices but bias and c are bfloat16; see Product */
} Steps;

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Sixteen __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t FourBits __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t EightBits __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t SixteenBits __attribute__((vector_size(64), aligned(4), may_alias));

/* NAME(w, x, stride, inputs, rows, bf16, out): some rows times one block of outputs, a section of the inputs alone; four vectors'
 * worth of outputs at a time. */
#define TILE(NAME, VECTOR, BITS)                                                                                \
    INLINE void NAME(const char *w, const char *x, int64_t stride, int64_t inputs, const int rows, const int bf16, \
                     float out[ROWS][BLOCK]) {                                                                  \
        enum { LANES = sizeof(VECTOR) / 4 };                                                                    \
        for (int from = 0; from < BLOCK; from += 4 * LANES) {                                                   \
            VECTOR sum[ROWS][4] = {0};                                                                          \
            for (int64_t k = 0; k < inputs; k += bf16 ? 2 : 1) {                                                \
                const uint32_t *at = (const uint32_t *)w + (bf16 ? k / 2 : k) * BLOCK + from;                   \
                _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++) {                                           \
                    BITS bits = *(const BITS *)(at + v * LANES);                                                \
                    VECTOR first = (VECTOR)(bf16 ? bits << 16 : bits), second = (VECTOR)(bits & 0xFFFF0000u);   \
                    _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) {                                    \
                        if (bf16) {                                                                             \
                            const uint16_t *pair = (const uint16_t *)x + r * stride + k;                        \
                            sum[r][v] += second * from_bits((uint32_t)pair[1] << 16);                           \
                            sum[r][v] += first * from_bits((uint32_t)pair[0] << 16);                            \
                        } else {                                                                                \
                            sum[r][v] += first * ((const float *)x)[r * stride + k];                            \
                        }                                                                                       \
                    }                                                                                           \
                }                                                                                               \
            }                                                                                                   \
            for (int r = 0; r < rows; r++)                                                                      \
                for (int v = 0; v < 4; v++) *(VECTOR *)(out[r] + from + v * LANES) = sum[r][v];                 \
        }                                                                                                       \
    }

TILE(tile_plain, Four, FourBits)
TILE(tile_avx2, Eight, EightBits)
TILE(tile_avx512, Sixteen, SixteenBits)

#if DOTS
AVX512_DOTS static inline __attribute__((always_inline)) void tile_dots(const char *w, const char *x, int64_t stride,
                                                                        int64_t inputs, const int rows, const int bf16,
                                                                        float out[ROWS][BLOCK]) {
    __m512 sum[ROWS][4];
    (void)bf16;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) sum[r][v] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += 2) {
        const uint16_t *at = (const uint16_t *)w + k * BLOCK;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, (const uint16_t *)x + r * stride + k, 4);
            __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++)
                sum[r][v] = _mm512_dpbf16_ps(sum[r][v], both, (__m512bh)_mm512_loadu_si512(at + 32 * v));
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) _mm512_storeu_ps(out[r] + 16 * v, sum[r][v]);
}
#endif

/* The body of a product with one of the tiles. A block is read once; ROWS rows at a time, a number the compiler knows. */
#define BLOCKS(TILE)                                                                                            \
    float total[ROWS][BLOCK], sum[ROWS][BLOCK];                                                                 \
    const Weight *weight = &a->weight;                                                                          \
    const int64_t size = bf16 ? 2 : 4, stride = weight->inputs, section = weight->section;                      \
    for (int64_t at = 0; at < weight->outputs; at += BLOCK) {                                                   \
        const char *block = (const char *)weight->blocks + at * weight->depth * size;                           \
        for (int64_t row = 0; row < a->rows; row += ROWS) {                                                     \
            int rows = a->rows - row < ROWS ? (int)(a->rows - row) : ROWS;                                      \
            for (int64_t from = 0; from < weight->inputs; from += section) {                                    \
                const char *w = block + from * BLOCK * size, *x = (const char *)a->x + (row * stride + from) * size; \
                int64_t n = weight->inputs - from < section ? weight->inputs - from : section;                  \
                float(*to)[BLOCK] = from ? sum : total;                                                         \
                switch (rows) {                                                                                 \
                case 1: TILE(w, x, stride, n, 1, bf16, to); break;                                              \
                case 2: TILE(w, x, stride, n, 2, bf16, to); break;                                              \
                case 3: TILE(w, x, stride, n, 3, bf16, to); break;                                              \
                default: TILE(w, x, stride, n, 4, bf16, to);                                                    \
                }                                                                                               \
                for (int r = 0; from && r < rows; r++)                                                          \
                    for (int k = 0; k < BLOCK; k++) total[r][k] += sum[r][k];                                   \
            }                                                                                                   \
            deliver(a, at, row, rows, bf16, total);                                                             \
        }                                                                                                       \
    }

INLINE void deliver(const Product *a, int64_t at, int64_t row, int rows, const int bf16, float total[ROWS][BLOCK]) {
    int64_t n = a->weight.outputs - at < BLOCK ? a->weight.outputs - at : BLOCK;
    for (int r = 0; r < rows; r++) {
        void *out = (void *)row_of(a->out, row + r, a->weight.outputs, bf16);
        float *to = place(out, at, bf16, total[r]);
#pragma omp simd
        for (int64_t k = 0; k < n; k++) to[k] = within(total[r][k], -a->limit, a->limit);
        give(out, at, bf16, total[r], n);
    }
}

AVX512 static void wide_avx512(const Product *a) { enum { bf16 = 0 }; BLOCKS(tile_avx512) }
AVX512 static void narrow_avx512(const Product *a) { enum { bf16 = 1 }; BLOCKS(tile_avx512) }
AVX2 static void wide_avx2(const Product *a) { enum { bf16 = 0 }; BLOCKS(tile_avx2) }
AVX2 static void narrow_avx2(const Product *a) { enum { bf16 = 1 }; BLOCKS(tile_avx2) }
static void wide_plain(const Product *a) { enum { bf16 = 0 }; BLOCKS(tile_plain) }
static void narrow_plain(const Product *a) { enum { bf16 = 1 }; BLOCKS(tile_plain) }
#if DOTS
AVX512_DOTS static void narrow_dots(const Product *a) { enum { bf16 = 1 }; BLOCKS(tile_dots) }
/* Whether this machine has products of bfloat16 numbers. */
EXPORT int32_t polyseme_dots(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") != 0;
}
#else
static void narrow_dots(const Product *a) { narrow_avx512(a); }
EXPORT int32_t polyseme_dots(void) { return 0; }
#endif

/* `x @ weight.T`. */
EXPORT void polyseme_few_product(int32_t instructions, const Product *a) {
    if (CHOICE && instructions == 2) a->bf16 ? (a->dots ? narrow_dots(a) : narrow_avx512(a)) : wide_avx512(a);
    else if (CHOICE && instructions == 1) a->bf16 ? narrow_avx2(a) : wide_avx2(a);
    else a->bf16 ? narrow_plain(a) : wide_plain(a);
}

/* All steps. */
EXPORT void polyseme_few_steps(int32_t instructions, const Steps *a) {
    const int64_t size = a->bf16 ? 2 : 4, dim = a->dim, width = a->width;
    const int projected = a->projection.blocks != NULL;
    const char *before = a->before, *added = a->added;
    char *hidden = a->hidden;
    for (int64_t step = 0; step < a->steps; step++) {
        int64_t rows = a->counts[step];
        Product gates = {.weight = a->recurrent, .rows = rows, .x = before, .out = a->gates, .limit = INFINITY,
                         .bf16 = a->bf16, .dots = a->dots};
        polyseme_few_product(instructions, &gates);
        Forward cell = {.rows = rows, .dim = dim, .gates = a->gates, .added = added, .bias = a->bias, .c_prev = a->c, .c = a->c,
                        .m = projected ? a->inner : hidden, .gates_stride = 4 * dim, .added_stride = 4 * dim,
                        .c_prev_stride = dim, .c_stride = dim, .m_stride = dim, .gates_bf16 = a->bf16, .added_bf16 = a->bf16,
                        .m_bf16 = a->bf16, .clip = a->cell_clip, .forget_bias = a->forget_bias};
        polyseme_cell_forward(instructions, &cell);
        if (projected) {
            Product projection = {.weight = a->projection, .rows = rows, .x = a->inner, .out = hidden,
                                  .limit = a->projection_clip, .bf16 = a->bf16, .dots = a->dots};
            polyseme_few_product(instructions, &projection);
        }
        before = hidden;
        hidden += rows * width * size;
        added += rows * 4 * dim * size;
    }
}

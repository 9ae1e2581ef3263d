/* What the C files share: bfloat16, exponentials, rows that may be narrow. Arithmetic is float32.
 *
 * The loops are plain C. The compiler vectorises them once per instruction set; the caller chooses one at run time.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__)
#define CHOICE 1
#if defined(__clang__)
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"), min_vector_width(512)))
#else
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")))
#endif
#define AVX2 __attribute__((target("avx2,fma")))
#else
#define CHOICE 0
#define AVX512
#define AVX2
#endif

/* NAME(instructions, a): the inline function BODY, compiled for every instruction set. */
#define DISPATCH(NAME, BODY, ARGUMENTS)                                                                        \
    AVX512 static void BODY##_avx512(const ARGUMENTS *a) { BODY(a); }                                          \
    AVX2 static void BODY##_avx2(const ARGUMENTS *a) { BODY(a); }                                              \
    static void BODY##_plain(const ARGUMENTS *a) { BODY(a); }                                                  \
    EXPORT void NAME(int32_t instructions, const ARGUMENTS *a) {                                               \
        CHOICE && instructions == 2 ? BODY##_avx512(a) : CHOICE && instructions == 1 ? BODY##_avx2(a) : BODY##_plain(a); \
    }

enum { CHUNK = 256 }; /* columns worked on at a time: everything a chunk needs stays in the first-level cache */

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

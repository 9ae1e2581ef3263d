/* What pretraining adds to the products: maxima of convolutions, highways, the sampled softmax's error, updates. */
#include "vector.h"

typedef struct {
    int64_t words, positions, filters;
    const void *results;    /* words x positions x filters, side by side, float32 or bfloat16 */
    float *best;            /* words x filters: the largest result of all positions */
    uint8_t *at;            /* words x filters: the first position that has it */
    int64_t best_stride;
    int32_t results_bf16;
} Maxima;

typedef struct {
    int64_t words, filters, reach, step; /* a position reads `reach` numbers, `step` of them further on than the last one */
    const float *embedded;  /* words x length */
    const float *kernel;    /* filters x reach */
    const float *dbest;     /* words x filters */
    const uint8_t *at;
    float *dembedded, *dkernel; /* gradients are added to them */
    int64_t length, dbest_stride;
} MaximaBackward;

typedef struct {
    int64_t rows, columns;
    void *logits;           /* replaced by their gradients */
    const float *shift;     /* columns: added to the logits */
    const int64_t *hits;    /* rows: the column that does not count, or -1 */
    const float *wanted;    /* rows: the logit of the word itself, which is none of the columns */
    float *norm;            /* rows: log of the sum of all exponentials */
    float *dshift;          /* columns: the sum of the gradients over the rows is added */
    float *room;            /* columns */
    int64_t logits_stride;
    int32_t logits_bf16;
} SampledError;

typedef struct {
    int64_t size;
    float *value, *first, *second; /* Adagrad has one accumulator, `second` */
    const float *gradient;
    float scale, rate, beta1, beta2, decay, root, epsilon; /* see twin.py */
} Update;

typedef struct {
    int64_t rows, width;
    void *gate, *transform; /* rows x width, side by side: pre-activations without bias; replaced by what `forward` made of them,
                               and by `backward` by their gradients */
    const float *gate_bias, *transform_bias; /* width each; forward only */
    const float *x;         /* rows x width */
    float *y;               /* rows x width: the output; in `backward` the gradient of x but for the products */
    const float *dy;        /* rows x width; backward only */
    float *dgate_bias, *dtransform_bias; /* sums over the rows are added to them; backward only */
    int32_t bf16;
} Highway;

INLINE void maxima(const Maxima *a) {
    float room[CHUNK] __attribute__((aligned(64)));
    for (int64_t word = 0; word < a->words; word++) {
        const char *results = (const char *)a->results + word * a->positions * a->filters * (a->results_bf16 ? 2 : 4);
        float *best = a->best + word * a->best_stride;
        uint8_t *at = a->at + word * a->filters;
        for (int64_t from = 0; from < a->filters; from += CHUNK) {
            int64_t n = a->filters - from < CHUNK ? a->filters - from : CHUNK;
            float *b = best + from;
            uint8_t *w = at + from;
            for (int64_t k = 0; k < n; k++) w[k] = 0;
            for (int64_t p = 0; p < a->positions; p++) {
                const float *x = take(results, p * a->filters + from, a->results_bf16, room, n);
                if (p == 0) {
                    memcpy(b, x, (size_t)n * sizeof(float));
                    continue;
                }
#pragma omp simd
                for (int64_t k = 0; k < n; k++) {
                    int more = x[k] > b[k] || x[k] != x[k]; /* NaN stays, so that the guard sees it */
                    b[k] = more ? x[k] : b[k];
                    w[k] = more ? (uint8_t)p : w[k];
                }
            }
        }
    }
}

INLINE void maxima_backward(const MaximaBackward *a) {
    for (int64_t word = 0; word < a->words; word++) {
        const float *embedded = a->embedded + word * a->length, *dbest = a->dbest + word * a->dbest_stride;
        float *dembedded = a->dembedded + word * a->length;
        const uint8_t *at = a->at + word * a->filters;
        for (int64_t f = 0; f < a->filters; f++) {
            float d = dbest[f];
            if (d == 0.0f) continue;
            const float *x = embedded + at[f] * a->step, *kernel = a->kernel + f * a->reach;
            float *dx = dembedded + at[f] * a->step, *dkernel = a->dkernel + f * a->reach;
#pragma omp simd
            for (int64_t k = 0; k < a->reach; k++) {
                dkernel[k] += d * x[k];
                dx[k] += d * kernel[k];
            }
        }
    }
}

/* exp(x) for x of at most 0; what is below -87 counts as that. */
INLINE float exponential(float x) {
    float n, t = x < -87.0f ? -87.0f : x;
    float scale = power(t, 1.44269504f, &n);
    float r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
    float e = 0.00836925022f + r * 0.00138204684f;
    e = 0.49999994f + r * (0.166665167f + r * (0.0416682847f + r * e));
    return scale * (1.0f + r * (1.0f + r * e));
}

INLINE void sampled_error(const SampledError *a) {
    float *x = a->room;
    for (int64_t row = 0; row < a->rows; row++) {
        void *logits = (void *)row_of(a->logits, row, a->logits_stride, a->logits_bf16);
        float wanted = a->wanted[row], most = wanted, sum = 0.0f;
        int64_t hit = a->hits[row];
        const float *given = take(logits, 0, a->logits_bf16, x, a->columns);
#pragma omp simd reduction(max : most)
        for (int64_t k = 0; k < a->columns; k++) {
            x[k] = given[k] + a->shift[k];
            most = x[k] > most ? x[k] : most;
        }
        if (hit >= 0) x[hit] = -INFINITY;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < a->columns; k++) {
            x[k] = exponential(x[k] - most);
            sum += x[k];
        }
        if (hit >= 0) x[hit] = 0.0f;
        sum += exponential(wanted - most);
        float share = 1.0f / sum;
        a->norm[row] = most + logf(sum);
        float *out = place(logits, 0, a->logits_bf16, x);
#pragma omp simd
        for (int64_t k = 0; k < a->columns; k++) {
            out[k] = x[k] * share;
            a->dshift[k] += out[k];
        }
        give(logits, 0, a->logits_bf16, out, a->columns);
    }
}

INLINE void highway_forward(const Highway *a) {
    float room[2][CHUNK] __attribute__((aligned(64)));
    for (int64_t row = 0; row < a->rows; row++) {
        for (int64_t at = 0; at < a->width; at += CHUNK) {
            int64_t n = a->width - at < CHUNK ? a->width - at : CHUNK, from = row * a->width + at;
            const float *g = take(a->gate, from, a->bf16, room[0], n), *t = take(a->transform, from, a->bf16, room[1], n);
            float *gate = place(a->gate, from, a->bf16, room[0]), *transform = place(a->transform, from, a->bf16, room[1]);
            const float *x = a->x + from, *gate_bias = a->gate_bias + at, *transform_bias = a->transform_bias + at;
            float *y = a->y + from;
#pragma omp simd
            for (int64_t k = 0; k < n; k++) {
                float share = sigmoid(g[k] + gate_bias[k]), other = t[k] + transform_bias[k];
                other = other < 0.0f ? 0.0f : other;
                gate[k] = share;
                transform[k] = other;
                y[k] = x[k] + share * (other - x[k]);
            }
            give(a->gate, from, a->bf16, gate, n);
            give(a->transform, from, a->bf16, transform, n);
        }
    }
}

INLINE void highway_backward(const Highway *a) {
    float room[2][CHUNK] __attribute__((aligned(64)));
    for (int64_t row = 0; row < a->rows; row++) {
        for (int64_t at = 0; at < a->width; at += CHUNK) {
            int64_t n = a->width - at < CHUNK ? a->width - at : CHUNK, from = row * a->width + at;
            const float *g = take(a->gate, from, a->bf16, room[0], n), *t = take(a->transform, from, a->bf16, room[1], n);
            float *dgate = place(a->gate, from, a->bf16, room[0]), *dtransform = place(a->transform, from, a->bf16, room[1]);
            const float *x = a->x + from, *dy = a->dy + from;
            float *dx = a->y + from, *dgate_bias = a->dgate_bias + at, *dtransform_bias = a->dtransform_bias + at;
#pragma omp simd
            for (int64_t k = 0; k < n; k++) {
                float share = g[k], other = t[k], d = dy[k];
                float dg = d * (other - x[k]) * share * (1.0f - share), dt = other > 0.0f ? d * share : 0.0f;
                dgate[k] = dg;
                dtransform[k] = dt;
                dgate_bias[k] += dg;
                dtransform_bias[k] += dt;
                dx[k] = d - d * share;
            }
            give(a->gate, from, a->bf16, dgate, n);
            give(a->transform, from, a->bf16, dtransform, n);
        }
    }
}

INLINE void adagrad(const Update *a) {
    float rate = a->rate * a->scale, square = a->scale * a->scale;
#pragma omp simd
    for (int64_t k = 0; k < a->size; k++) {
        float gradient = a->gradient[k], second = a->second[k] + gradient * gradient * square;
        a->second[k] = second;
        a->value[k] -= rate * gradient / sqrtf(second);
    }
}

INLINE void adamw(const Update *a) {
#pragma omp simd
    for (int64_t k = 0; k < a->size; k++) {
        float gradient = a->gradient[k] * a->scale;
        float first = a->first[k] * a->beta1 + gradient * (1.0f - a->beta1);
        float second = a->second[k] * a->beta2 + gradient * gradient * (1.0f - a->beta2);
        a->first[k] = first;
        a->second[k] = second;
        a->value[k] = a->value[k] * a->decay - a->rate * first / (sqrtf(second) * a->root + a->epsilon);
    }
}

DISPATCH(polyseme_maxima, maxima, Maxima)
DISPATCH(polyseme_maxima_backward, maxima_backward, MaximaBackward)
DISPATCH(polyseme_sampled_error, sampled_error, SampledError)
DISPATCH(polyseme_highway_forward, highway_forward, Highway)
DISPATCH(polyseme_highway_backward, highway_backward, Highway)
DISPATCH(polyseme_adagrad, adagrad, Update)
DISPATCH(polyseme_adamw, adamw, Update)

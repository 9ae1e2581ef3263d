/* The cell's forward pass, which other files call too. */
#include "vector.h"

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

EXPORT void polyseme_cell_forward(int32_t instructions, const Forward *a);

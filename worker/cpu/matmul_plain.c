/* y = x W^T in plain f32: what the other paths are measured against.
 *
 * Invariant: an output is the sum, in order, of the partial sums of CHUNK values; a partial sum
 * has LANES accumulators joined by one fixed tree. So it depends on its row and its weights alone,
 * and, without contraction, is the same on every machine.
 * Does not know quantised activations; weights are dequantised a chunk at a time, once for all
 * rows. */
#include "worker/cpu/dequant.h"
#include "worker/cpu/matmul_impl.h"

enum { CHUNK = 256, LANES = 16 };

static float dot(const float *restrict x, const float *restrict w, size_t n)
{
    float acc[LANES] = {0};
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int l = 0; l < LANES; l++)
            acc[l] += x[k + l] * w[k + l];
    for (int l = 0; k < n; k++, l++)
        acc[l] += x[k] * w[k];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            acc[l] += acc[l + half];
    return acc[0];
}

void matmul_plain_run(const struct matmul_job *job)
{
    const struct matmul_weight *m = job->m;
    const size_t row_bytes = tensor_type_row_bytes(m->type, m->n_in);
    float w[CHUNK];
    for (size_t o = job->out_begin; o < job->out_end; o++) {
        for (size_t k = 0; k < m->n_in; k += CHUNK) {
            const size_t n = m->n_in - k < CHUNK ? m->n_in - k : CHUNK;
            dequant_row(m->type, m->data + o * row_bytes + tensor_type_row_bytes(m->type, k), n, w);
            for (size_t r = 0; r < job->in.n_rows; r++) {
                const float part = dot(job->in.x + r * m->n_in + k, w, n);
                float *y = &job->y[r * job->y_stride + o];
                *y = k ? *y + part : part;
            }
        }
    }
}

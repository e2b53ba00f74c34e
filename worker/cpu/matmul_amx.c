/* How do several rows multiply faster than with VNNI? The AVX-512 path's integer dots on the tile
 * unit (AMX-INT8), where processor and kernel grant it.
 *
 * Invariant: bit for bit what matmul_avx512_quant computes: the integer dots are exact on either
 * unit, and the float operations of an output are the same in the same order. So it may be used or
 * not, row by row, without anyone noticing but the clock.
 * A block's sums are read one block later, so that the vector units need not wait for the tiles.
 * A group of fewer rows is multiplied as one of 16, for the unit takes no longer; what follows the
 * group's rows in memory is multiplied too, and dropped.
 * Does not know float weights. */
#include "worker/cpu/matmul_impl.h"

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = 16,
    SEGMENT = 48,    /* blocks whose unpacked weights lie on the stack, 48 KiB */
    UNPACKED = 1024, /* bytes of a block: [2][8][LANES][4] u8, first times 16, then as they are */
    Q8_BYTES = 512,  /* bytes of a block: [8][LANES][4] u8 */
    ARCH_REQ_XCOMP_PERM = 0x1023,
    XFEATURE_TILE_DATA = 18,
};

/* Q4: part 0 is the dots. Q8: 16 * part 0 + part 1 is, since 16 * w is no byte. */
struct sums {
    int32_t part[2][MATMUL_GROUP][LANES];
};

/* The compiler's tile intrinsics do not say that they read memory: what they are to read must have
 * been written before this. */
INLINE void finish_writes(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

bool matmul_amx_request(void)
{
    return __builtin_cpu_supports("amx-int8") &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

/* Tiles 0 to 3: sums [16 rows][16 outputs]; 4, 5: activations [16 rows][k]; 6, 7: weights
 * [k / 4][16 outputs][4 values]. k: both parts of the activations beside each other for Q4, one for
 * Q8. */
void matmul_amx_begin(enum tensor_type type)
{
    const uint8_t k = type == TENSOR_Q8_0 ? MATMUL_BLOCK : 2 * MATMUL_BLOCK;
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1,
                                             .row_bytes = {64, 64, 64, 64, k, k, 64, 64},
                                             .rows = {16, 16, 16, 16, 16, 16, k / 4, k / 4}};
    finish_writes(&config);
    _tile_loadconfig(&config);
}

void matmul_amx_end(void)
{
    _tile_release();
}

/* sums = q times the weights in tile b. Tile numbers are part of the
 * instruction: a macro can pass them on, a function cannot. */
#define MULTIPLY(c, a, b, q, sums)                                                                 \
    _tile_zero(c);                                                                                 \
    _tile_loadd(a, q, MATMUL_ROW_BYTES);                                                           \
    _tile_dpbsud(c, a, b);                                                                         \
    _tile_stored(c, sums, 64)

/* One block: q [rows][2][32], w [UNPACKED] or [Q8_BYTES]. Neighbouring blocks use other tiles, so
 * that one need not wait for the other. */
INLINE void multiply(enum tensor_type type, uint32_t block, const int8_t *q, const uint8_t *w,
                     struct sums *out)
{
    if (block % 2) {
        _tile_loadd(6, w, 64);
        MULTIPLY(0, 4, 6, q, out->part[0]);
        if (type == TENSOR_Q8_0) {
            MULTIPLY(2, 5, 6, q + MATMUL_BLOCK, out->part[1]);
        }
    } else {
        _tile_loadd(7, w, 64);
        MULTIPLY(1, 5, 7, q, out->part[0]);
        if (type == TENSOR_Q8_0) {
            MULTIPLY(3, 4, 7, q + MATMUL_BLOCK, out->part[1]);
        }
    }
}

INLINE __m512 load_halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

INLINE void accumulate(enum tensor_type type, const struct sums *sums, const uint8_t *scales,
                       const struct matmul_meta *meta, uint32_t n_rows, const int rows, __m512 *acc)
{
    const __m512 d_w = load_halves(scales);
    const __m512 m_w = type == TENSOR_Q4_1 ? load_halves(scales + 2 * LANES) : d_w;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        const struct matmul_meta *of_row = &meta[(uint32_t)r < n_rows ? r : 0];
        __m512i sum = _mm512_load_si512(sums->part[0][r]);
        if (type == TENSOR_Q8_0)
            sum = _mm512_add_epi32(_mm512_slli_epi32(sum, MATMUL_LOW_BITS),
                                   _mm512_load_si512(sums->part[1][r]));
        if (type == TENSOR_Q4_0)
            sum = _mm512_add_epi32(sum, _mm512_set1_epi32(of_row->offset_q4));
        if (type == TENSOR_Q8_0)
            sum = _mm512_add_epi32(sum, _mm512_set1_epi32(of_row->offset_q8));
        const __m512 d = _mm512_mul_ps(d_w, _mm512_set1_ps(of_row->d));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), d, acc[r]);
        if (type == TENSOR_Q4_1)
            acc[r] = _mm512_fmadd_ps(m_w, _mm512_set1_ps(of_row->d_sum), acc[r]);
    }
}

/* A stretch of blocks of one tile, and the y that it adds to. */
struct segment {
    const uint8_t *w, *scales;
    uint32_t begin, n_blocks; /* begin: counted from the row's first block */
};

/* The n_rows <= rows rows of a group; rows is a constant once inlined, and n_rows too if it is 16.
 */
INLINE void add_group(enum tensor_type type, const struct segment *s,
                      const struct matmul_quant_piece *p, const uint32_t n_rows, const int rows)
{
    const size_t scale_bytes = (type == TENSOR_Q4_1 ? 4 : 2) * LANES;
    const size_t w_bytes = type == TENSOR_Q8_0 ? Q8_BYTES : UNPACKED;
    const int8_t *q = p->q + (size_t)s->begin * n_rows * MATMUL_ROW_BYTES;
    const struct matmul_meta *meta = p->meta + (size_t)s->begin * n_rows;
    const __mmask16 mask = (__mmask16)((1u << p->n_outputs) - 1);
    struct sums sums[2] __attribute__((aligned(64)));
    __m512 acc[MATMUL_GROUP];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        acc[r] = s->begin && (uint32_t)r < n_rows
                     ? _mm512_maskz_loadu_ps(mask, p->y + r * p->y_stride)
                     : _mm512_setzero_ps();
    for (uint32_t b = 0; b <= s->n_blocks; b++) {
        if (b < s->n_blocks)
            multiply(type, b, q + (size_t)b * n_rows * MATMUL_ROW_BYTES, s->w + b * w_bytes,
                     &sums[b % 2]);
        if (b > 0)
            accumulate(type, &sums[(b - 1) % 2], s->scales + (b - 1) * scale_bytes,
                       meta + (size_t)(b - 1) * n_rows, n_rows, rows, acc);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        if ((uint32_t)r < n_rows)
            _mm512_mask_storeu_ps(p->y + r * p->y_stride, mask, acc[r]);
}

static void unpack(const uint8_t *nibbles, uint32_t n_blocks, uint8_t *w)
{
    const __m512i low = _mm512_set1_epi8(15);
    for (uint32_t b = 0; b < n_blocks; b++, nibbles += Q8_BYTES / 2, w += UNPACKED)
        for (int j = 0; j < 4; j++) {
            const __m512i both = _mm512_loadu_si512(nibbles + 64 * j);
            const __m512i first = _mm512_and_si512(both, low);
            const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
            _mm512_store_si512(w + 64 * j, _mm512_slli_epi16(first, MATMUL_LOW_BITS));
            _mm512_store_si512(w + 64 * (j + 4), _mm512_andnot_si512(low, both));
            _mm512_store_si512(w + 64 * (j + 8), first);
            _mm512_store_si512(w + 64 * (j + 12), second);
        }
}

INLINE void quant_groups(enum tensor_type type, const struct matmul_quant_piece *p)
{
    const size_t quant_bytes = (type == TENSOR_Q8_0 ? 32 : 16) * LANES;
    const size_t scale_bytes = (type == TENSOR_Q4_1 ? 4 : 2) * LANES;
    uint8_t unpacked[SEGMENT * UNPACKED] __attribute__((aligned(64)));
    for (uint32_t b = 0; b < p->n_blocks; b += SEGMENT) {
        struct segment s = {.w = p->quants + b * quant_bytes,
                            .scales = p->scales + b * scale_bytes,
                            .begin = b,
                            .n_blocks = p->n_blocks - b < SEGMENT ? p->n_blocks - b : SEGMENT};
        if (type != TENSOR_Q8_0) {
            unpack(s.w, s.n_blocks, unpacked);
            s.w = unpacked;
            finish_writes(unpacked);
        }
        struct matmul_quant_piece group = *p;
        for (; group.n_rows >= MATMUL_GROUP; group.n_rows -= MATMUL_GROUP) {
            add_group(type, &s, &group, MATMUL_GROUP, MATMUL_GROUP);
            group.q += (size_t)p->n_blocks * MATMUL_GROUP * MATMUL_ROW_BYTES;
            group.meta += (size_t)p->n_blocks * MATMUL_GROUP;
            group.y += MATMUL_GROUP * p->y_stride;
        }
        if (group.n_rows > 8)
            add_group(type, &s, &group, group.n_rows, MATMUL_GROUP);
        else if (group.n_rows > 0)
            add_group(type, &s, &group, group.n_rows, 8);
    }
}

void matmul_amx_quant(enum tensor_type type, const struct matmul_quant_piece *p)
{
    if (type == TENSOR_Q4_0)
        quant_groups(TENSOR_Q4_0, p);
    else if (type == TENSOR_Q4_1)
        quant_groups(TENSOR_Q4_1, p);
    else
        quant_groups(TENSOR_Q8_0, p);
}

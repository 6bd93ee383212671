/* What a step on the CPU spends its time in, but for the large products of prefill: decoding's products and attention, which
 * are bound by memory and read each byte once, attention of prefill, and the small steps between them.
 *
 * Plain C with the vector extensions of GCC and Clang: one vector is 16 floats, which the compiler splits into what the
 * machine has. Sums are formed in a fixed order that depends on the shapes alone, not on the number of threads.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef int16_t shorts __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

INLINE vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE vec widen(const uint8_t *p) {
    bytes b;
    memcpy(&b, p, sizeof b);
#ifdef __AVX512F__
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)b));
#else /* step by step: in one, GCC 12 takes the bytes apart one by one */
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(b, shorts), ivec), vec);
#endif
}
INLINE float sum(vec v) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)v);
#endif
    float parts[LANES];
    memcpy(parts, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

/* e^x for x <= 0, within 2 units in the last place. */
INLINE vec exponential(vec x) {
    const vec least = (vec){0} - 87.0f;
    const ivec below = x < least;
    x = (vec)(((ivec)x & ~below) | ((ivec)least & below));
    const vec shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the integer part lands in the low bits */
    const vec whole = shifted - 12582912.0f;
    const vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return (vec)((ivec)y + (__builtin_convertvector(whole, ivec) << 23));
}

/* ---- products with weights as they stand in the file ------------------------------------------------------------
 *
 * A weight is scale * code + offset; scale and offset are shared by `group` neighbours of a row. The product of scale and
 * code is exact in float32, so the sum rounds once: the weight is the float that dequantizing gives, to the last bit.
 * Four rows of the matrix lie interleaved, so that memory is read as one stream:
 *
 *     for each 4 outputs, for each group: scale[4] offset[4] floats, then code[4][group] bytes
 */

#define TOGETHER 4
#define AHEAD 4096 /* bytes to fetch early: the hardware alone stops at the end of a page */

/* `rows` rows of x times outputs first .. first + some of one block. */
INLINE void rows_by_outputs(const uint8_t *w, const float *x, float *y, ptrdiff_t outputs, ptrdiff_t inputs,
                            const int rows, const int first, const int some, const int vectors) {
    vec total[8][TOGETHER];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int o = 0; o < some; o++) total[r][o] = (vec){0};
    for (ptrdiff_t i = 0; i < inputs; i += vectors * LANES) {
        float scale[TOGETHER], offset[TOGETHER];
        memcpy(scale, w, sizeof scale);
        memcpy(offset, w + sizeof scale, sizeof offset);
        const uint8_t *codes = w + sizeof scale + sizeof offset;
        if (!first)
            UNROLL for (int line = 0; line <= vectors; line++) __builtin_prefetch(w + AHEAD + 64 * line);
        UNROLL for (int v = 0; v < vectors; v++) {
            vec weight[TOGETHER];
            UNROLL for (int o = 0; o < some; o++)
                weight[o] = scale[first + o] * widen(codes + ((first + o) * vectors + v) * LANES) + offset[first + o];
            UNROLL for (int r = 0; r < rows; r++) {
                const vec in = load(x + r * inputs + i + v * LANES);
                UNROLL for (int o = 0; o < some; o++) total[r][o] += weight[o] * in;
            }
        }
        w = codes + TOGETHER * vectors * LANES;
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int o = 0; o < some; o++) y[r * outputs + first + o] = sum(total[r][o]);
}

INLINE void rows_by_block(const uint8_t *w, const float *x, float *y, ptrdiff_t outputs, ptrdiff_t inputs,
                          ptrdiff_t group, const int rows) {
    const int some = rows <= 4 ? TOGETHER : TOGETHER / 2; /* what sums fit in registers */
    UNROLL for (int first = 0; first < TOGETHER; first += some) {
        if (group == 2 * LANES) rows_by_outputs(w, x, y, outputs, inputs, rows, first, some, 2);
        else rows_by_outputs(w, x, y, outputs, inputs, rows, first, some, 1);
    }
}

/* y[rows, outputs] = x[rows, inputs] W^T for 1, 2, 4 or 8 rows; outputs is a multiple of 4, group 16 or 32, inputs a
 * multiple of group. */
void coded_product(const uint8_t *weight, const float *x, float *y, ptrdiff_t rows, ptrdiff_t outputs,
                   ptrdiff_t inputs, ptrdiff_t group, int threads) {
    const ptrdiff_t size = inputs / group * TOGETHER * (8 + group);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (ptrdiff_t at = 0; at < outputs; at += TOGETHER) {
        const uint8_t *w = weight + at / TOGETHER * size;
        switch (rows) {
        case 1: rows_by_block(w, x, y + at, outputs, inputs, group, 1); break;
        case 2: rows_by_block(w, x, y + at, outputs, inputs, group, 2); break;
        case 4: rows_by_block(w, x, y + at, outputs, inputs, group, 4); break;
        default: rows_by_block(w, x, y + at, outputs, inputs, group, 8); break;
        }
    }
}

/* ---- what stands between the products ----------------------------------------------------------------------------
 *
 * PyTorch runs each of these as five to ten operators: for a few rows they cost more than the numbers do, for many each
 * goes through memory once more.
 */

#define MANY 32 /* rows that are worth a second thread */

/* y[rows, size] = x / sqrt(mean(x^2) + eps) * weight. */
void rms_norm(const float *x, const float *weight, float *y, ptrdiff_t rows, ptrdiff_t size, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows >= MANY) schedule(static)
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float *in = x + r * size;
        vec squares = {0};
        float rest = 0;
        ptrdiff_t i = 0;
        for (; i + LANES <= size; i += LANES) squares += load(in + i) * load(in + i);
        for (; i < size; i++) rest += in[i] * in[i];
        const float factor = 1.0f / sqrtf((sum(squares) + rest) / (float)size + eps);
        for (i = 0; i + LANES <= size; i += LANES)
            store(y + r * size + i, load(in + i) * factor * load(weight + i));
        for (; i < size; i++) y[r * size + i] = in[i] * factor * weight[i];
    }
}

/* y[rows, size] = silu(gate) * up, where a row of gate_up is gate[size] up[size]; size is a multiple of 16. */
void gate_silu(const float *gate_up, float *y, ptrdiff_t rows, ptrdiff_t size, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows >= MANY) schedule(static)
    for (ptrdiff_t r = 0; r < rows; r++)
        for (ptrdiff_t i = 0; i < size; i += LANES) {
            const vec gate = load(gate_up + 2 * r * size + i), up = load(gate_up + (2 * r + 1) * size + i);
            const ivec negative = gate < 0.0f;
            const vec small = exponential((vec)((ivec)gate | INT32_MIN)); /* e^-|gate| */
            const vec one = (vec){0} + 1.0f;
            const vec top = (vec)(((ivec)small & negative) | ((ivec)one & ~negative));
            store(y + r * size + i, gate * up * top / (one + small)); /* sigmoid without overflow on either side */
        }
}

/* Turns the first `heads` heads of a row of qkv by turn[rows, dim / 2] complex numbers, in place, and stores the keys and
 * values, its last 2 * kv_heads heads, at slots[rows] of cache [2, slots, kv_heads, dim]. */
void rotate_and_write(float *qkv, const float *turn, float *cache, const int64_t *slot, ptrdiff_t rows,
                      ptrdiff_t heads, ptrdiff_t kv_heads, ptrdiff_t dim, ptrdiff_t slots, int threads) {
    const ptrdiff_t width = kv_heads * dim, row = (heads + kv_heads) * dim;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows >= MANY) schedule(static)
    for (ptrdiff_t r = 0; r < rows; r++) {
        float *own = qkv + r * row;
        const float *by = turn + r * dim;
        for (ptrdiff_t h = 0; h < heads; h++)
            for (ptrdiff_t i = 0; i < dim; i += 2) {
                const float a = own[h * dim + i], b = own[h * dim + i + 1];
                own[h * dim + i] = a * by[i] - b * by[i + 1];
                own[h * dim + i + 1] = a * by[i + 1] + b * by[i];
            }
        memcpy(cache + slot[r] * width, own + row - 2 * width, sizeof(float) * (size_t)width);
        memcpy(cache + (slots + slot[r]) * width, own + row - width, sizeof(float) * (size_t)width);
    }
}

/* ---- attention of single tokens over paged keys and values ------------------------------------------------------- */

struct paged { const float *keys, *values; const int32_t *table; ptrdiff_t block_size, token; };

INLINE ptrdiff_t slot_of(struct paged kv, ptrdiff_t position) {
    return (ptrdiff_t)kv.table[position / kv.block_size] * kv.block_size + position % kv.block_size;
}

/* `sharing` query heads on one KV head. weights: scratch, sharing * (count rounded up to 16). */
INLINE void one_head(struct paged kv, const float *query, float *out, float *weights, ptrdiff_t first, ptrdiff_t end,
                     ptrdiff_t sharing, float scale, const int vectors) {
    const ptrdiff_t count = end - first, padded = (count + LANES - 1) / LANES * LANES, dim = vectors * LANES;
    for (ptrdiff_t p = first; p < end; p++) {
        const float *key = kv.keys + slot_of(kv, p) * kv.token;
        for (ptrdiff_t s = 0; s < sharing; s++) {
            vec total = {0};
            UNROLL for (int v = 0; v < vectors; v++) total += load(query + s * dim + v * LANES) * load(key + v * LANES);
            weights[s * padded + p - first] = sum(total) * scale;
        }
    }
    for (ptrdiff_t s = 0; s < sharing; s++) {
        float *row = weights + s * padded, most = row[0];
        for (ptrdiff_t i = 1; i < count; i++) most = row[i] > most ? row[i] : most;
        for (ptrdiff_t i = count; i < padded; i++) row[i] = most - 1e4f; /* e^-87: nothing, and cleared below */
        vec total = {0};
        for (ptrdiff_t i = 0; i < padded; i += LANES) {
            vec e = exponential(load(row + i) - most);
            store(row + i, e);
            if (i + LANES > count)
                for (ptrdiff_t j = count; j < padded; j++) row[j] = 0.0f;
            total += load(row + i);
        }
        const float inverse = 1.0f / sum(total);
        for (ptrdiff_t i = 0; i < padded; i += LANES) store(row + i, load(row + i) * inverse);
    }
    for (ptrdiff_t s = 0; s < sharing; s += 2) { /* two at a time: their sums stay in registers */
        const int pair = s + 1 < sharing;
        const float *one = weights + s * padded, *two = weights + (s + pair) * padded;
        vec total[2][16];
        UNROLL for (int v = 0; v < vectors; v++) total[0][v] = total[1][v] = (vec){0};
        for (ptrdiff_t p = first; p < end; p++) {
            const float *value = kv.values + slot_of(kv, p) * kv.token;
            UNROLL for (int v = 0; v < vectors; v++) {
                const vec part = load(value + v * LANES);
                total[0][v] += one[p - first] * part;
                total[1][v] += two[p - first] * part;
            }
        }
        UNROLL for (int v = 0; v < vectors; v++) {
            store(out + s * dim + v * LANES, total[0][v]);
            if (pair) store(out + (s + 1) * dim + v * LANES, total[1][v]);
        }
    }
}

/* Softmax attention of `tokens` tokens, each over positions first[t] .. end[t] - 1 of its own block table.
 *
 * queries, out: [.., kv_heads * sharing * dim], rows[t] is token t's row; cache: [2, blocks, block_size, kv_heads, dim];
 * tables: the tokens' tables one after the other, token t's begins at starts[t]. dim is a multiple of 16, at most 256.
 * scratch: for each (token, KV head) sharing * (longest range rounded up to 16) floats.
 */
void paged_attention(const float *queries, const float *cache, float *out, float *scratch, const int64_t *rows,
                     const int32_t *tables, const int64_t *starts, const int64_t *first, const int64_t *end,
                     ptrdiff_t tokens, ptrdiff_t slots, ptrdiff_t block_size, ptrdiff_t kv_heads, ptrdiff_t sharing,
                     ptrdiff_t dim, ptrdiff_t scratch_row, float scale, int threads) {
    const ptrdiff_t token = kv_heads * dim, width = sharing * token;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (ptrdiff_t work = 0; work < tokens * kv_heads; work++) {
        const ptrdiff_t t = work / kv_heads, h = work % kv_heads;
        const struct paged kv = {cache + h * dim, cache + slots * token + h * dim, tables + starts[t], block_size, token};
        const float *query = queries + rows[t] * width + h * sharing * dim;
        float *target = out + rows[t] * width + h * sharing * dim, *own = scratch + work * scratch_row;
        switch (dim) {
        case 64: one_head(kv, query, target, own, first[t], end[t], sharing, scale, 4); break;
        default: one_head(kv, query, target, own, first[t], end[t], sharing, scale, (int)(dim / LANES)); break;
        }
    }
}

/* ---- attention of a chunk of tokens over paged keys and values ------------------------------------------------------
 *
 * The rows of one KV head are (token, query head) pairs, token by token; they are taken in panels of some vectors, a row
 * in each lane. Scores and sums therefore stand transposed, [keys][rows] and [dim][rows]: keys and values are
 * read in place, one number at a time for all lanes, and a softmax never sums across a vector. Keys come in stretches
 * whose scores stay in the first cache, with a running maximum (arXiv 2205.14135, algorithm 1).
 */

#ifdef __AVX512F__
#define WIDE 4 /* vectors of a panel: TOGETHER * WIDE sums fit in the registers */
#else
#define WIDE 1
#endif
#define STRETCH 128 /* keys, a multiple of TOGETHER */
#define LARGEST 256 /* dim */

struct panel {
    float query[LARGEST][WIDE * LANES] __attribute__((aligned(4 * LANES))), total[LARGEST][WIDE * LANES], score[STRETCH][WIDE * LANES];
    int32_t seen[WIDE * LANES]; /* the position of each row */
    const float *key[STRETCH], *value[STRETCH];
};

/* score[key][row] for `count` keys, and the largest of each row. */
INLINE void chunk_scores(struct panel *p, ptrdiff_t count, ptrdiff_t dim, vec *most, const int wide) {
    for (ptrdiff_t at = 0; at < count; at += TOGETHER) {
        vec total[TOGETHER][WIDE];
        UNROLL for (int k = 0; k < TOGETHER; k++)
            UNROLL for (int v = 0; v < wide; v++) total[k][v] = (vec){0};
        const float *key[TOGETHER];
        UNROLL for (int k = 0; k < TOGETHER; k++) key[k] = p->key[at + k];
        for (ptrdiff_t d = 0; d < dim; d++) {
            vec query[WIDE];
            UNROLL for (int v = 0; v < wide; v++) query[v] = load(p->query[d] + v * LANES);
            UNROLL for (int k = 0; k < TOGETHER; k++)
                UNROLL for (int v = 0; v < wide; v++) total[k][v] += key[k][d] * query[v];
        }
        UNROLL for (int k = 0; k < TOGETHER; k++)
            UNROLL for (int v = 0; v < wide; v++) {
                store(p->score[at + k] + v * LANES, total[k][v]);
                const ivec more = total[k][v] > most[v];
                most[v] = (vec)(((ivec)total[k][v] & more) | ((ivec)most[v] & ~more));
            }
    }
}

/* total[dim][row] = total * factor + value * score */
INLINE void chunk_values(struct panel *p, ptrdiff_t count, ptrdiff_t dim, const vec *factor, const int wide) {
    for (ptrdiff_t d = 0; d < dim; d += TOGETHER) {
        vec total[TOGETHER][WIDE];
        UNROLL for (int i = 0; i < TOGETHER; i++)
            UNROLL for (int v = 0; v < wide; v++) total[i][v] = load(p->total[d + i] + v * LANES) * factor[v];
        for (ptrdiff_t k = 0; k < count; k++) {
            const float *value = p->value[k] + d;
            vec weight[WIDE];
            UNROLL for (int v = 0; v < wide; v++) weight[v] = load(p->score[k] + v * LANES);
            UNROLL for (int i = 0; i < TOGETHER; i++)
                UNROLL for (int v = 0; v < wide; v++) total[i][v] += value[i] * weight[v];
        }
        UNROLL for (int i = 0; i < TOGETHER; i++)
            UNROLL for (int v = 0; v < wide; v++) store(p->total[d + i] + v * LANES, total[i][v]);
    }
}

/* Rows see the keys from `window` before their position to it; what they don't see of keys begin .. begin + count - 1 gets no
 * weight. */
INLINE void hide(struct panel *p, ptrdiff_t begin, ptrdiff_t count, ptrdiff_t window, const int wide) {
    for (ptrdiff_t k = 0; k < count; k++)
        UNROLL for (int v = 0; v < wide; v++) {
            ivec own;
            memcpy(&own, p->seen + v * LANES, sizeof own);
            const ivec key = (ivec){0} + (int32_t)(begin + k);
            const ivec hidden = (key > own) | (key <= own - (int32_t)window);
            const vec least = (vec){0} - 1e30f;
            vec score = load(p->score[k] + v * LANES);
            score = (vec)(((ivec)score & ~hidden) | ((ivec)least & hidden));
            store(p->score[k] + v * LANES, score);
        }
}

INLINE void one_panel(struct panel *p, struct paged kv, ptrdiff_t first, ptrdiff_t last, ptrdiff_t window, ptrdiff_t dim,
                      vec *sums, const int wide) {
    vec most[WIDE];
    UNROLL for (int v = 0; v < wide; v++) most[v] = (vec){0} - 1e29f, sums[v] = (vec){0};
    for (ptrdiff_t begin = first; begin <= last; begin += STRETCH) {
        const ptrdiff_t count = last + 1 - begin < STRETCH ? last + 1 - begin : STRETCH;
        for (ptrdiff_t k = 0; k < (count + TOGETHER - 1) / TOGETHER * TOGETHER; k++) { /* the last one stands in for none */
            const ptrdiff_t slot = slot_of(kv, begin + (k < count ? k : count - 1));
            p->key[k] = kv.keys + slot * kv.token;
            p->value[k] = kv.values + slot * kv.token;
        }
        vec before[WIDE], factor[WIDE];
        UNROLL for (int v = 0; v < wide; v++) before[v] = most[v];
        chunk_scores(p, count, dim, most, wide);
        if (begin + count - 1 > p->seen[0] || begin <= p->seen[wide * LANES - 1] - window) {
            hide(p, begin, count, window, wide);
            UNROLL for (int v = 0; v < wide; v++) most[v] = before[v];
            for (ptrdiff_t k = 0; k < count; k++)
                UNROLL for (int v = 0; v < wide; v++) {
                    const vec score = load(p->score[k] + v * LANES);
                    const ivec more = score > most[v];
                    most[v] = (vec)(((ivec)score & more) | ((ivec)most[v] & ~more));
                }
        }
        const vec none = (vec){0} - 87.0f;
        UNROLL for (int v = 0; v < wide; v++) {
            factor[v] = exponential(before[v] - most[v]);
            sums[v] *= factor[v];
        }
        for (ptrdiff_t k = 0; k < count; k++)
            UNROLL for (int v = 0; v < wide; v++) {
                const vec below = load(p->score[k] + v * LANES) - most[v];
                const vec weight = (vec)((ivec)exponential(below) & ~(below < none));
                sums[v] += weight;
                store(p->score[k] + v * LANES, weight);
            }
        chunk_values(p, count, dim, factor, wide);
    }
}

/* Softmax attention of `tokens` tokens of one sequence, at positions start, start + 1, .., each over the `window` positions
 * up to its own.
 *
 * queries, out: [tokens, kv_heads * sharing * dim], rows `query_row` and `out_row` floats apart; cache and dim as for
 * paged_attention; table: the sequence's blocks.
 */
void chunk_attention(const float *queries, const float *cache, float *out, const int32_t *table, ptrdiff_t tokens,
                    ptrdiff_t start, ptrdiff_t window, ptrdiff_t query_row, ptrdiff_t out_row, ptrdiff_t slots,
                    ptrdiff_t block_size, ptrdiff_t kv_heads, ptrdiff_t sharing, ptrdiff_t dim, float scale,
                    int threads) {
    const ptrdiff_t token = kv_heads * dim, rows = tokens * sharing, most = WIDE * LANES;
    const ptrdiff_t panels = (rows + most - 1) / most;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (ptrdiff_t work = 0; work < kv_heads * panels; work++) {
        struct panel p;
        const ptrdiff_t h = work / panels, from = work % panels * most, to = from + most < rows ? from + most : rows;
        const struct paged kv = {cache + h * dim, cache + slots * token + h * dim, table, block_size, token};
        const int wide = to - from <= LANES ? 1 : WIDE;
        for (ptrdiff_t r = 0; r < wide * LANES; r++) { /* rows beyond the last repeat it */
            const ptrdiff_t row = from + r < to ? from + r : to - 1, t = row / sharing;
            const float *query = queries + t * query_row + (h * sharing + row % sharing) * dim;
            p.seen[r] = (int32_t)(start + t);
            for (ptrdiff_t d = 0; d < dim; d++) p.query[d][r] = query[d] * scale, p.total[d][r] = 0;
        }
        vec sums[WIDE];
        const ptrdiff_t last = p.seen[wide * LANES - 1], first = p.seen[0] - window + 1;
        if (wide == 1) one_panel(&p, kv, first > 0 ? first : 0, last, window, dim, sums, 1);
        else one_panel(&p, kv, first > 0 ? first : 0, last, window, dim, sums, WIDE);
        float whole[WIDE * LANES];
        memcpy(whole, sums, sizeof whole);
        for (ptrdiff_t row = from; row < to; row++) {
            float *target = out + row / sharing * out_row + (h * sharing + row % sharing) * dim;
            for (ptrdiff_t d = 0; d < dim; d++) target[d] = p.total[d][row - from] / whole[row - from];
        }
    }
}

/* Whether a vector is one register of this machine; where it is several, compilers keep a panel's sums in memory, and
 * chunk_attention is slower than a library's products. */
int vectors_are_registers(void) {
#ifdef __AVX512F__
    return 1;
#else
    return 0;
#endif
}

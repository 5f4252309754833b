// Rotate, store, attend: one layer's attention of a ragged batch over paged keys and values.
//
// Memory of one layer: [block][keys of each kv head, then values of each][32 tokens × d], bf16:
//   keys    [d / 2][32 tokens][2]     so that 32 keys are the columns of a tile, d its sums
//   values  [16 token pairs][d][2]    so that 32 features are, and tokens the sums
// No gather, no copy, no transposition: a tile reads a block where it lies, and the query heads that
// share a kv head are rows of one tile.
//
// Soft-max is online over stretches of 128 keys; beyond 512 keys a sequence is cut into spans, each
// soft-maxed alone and merged by its maximum and sum (flash decoding, Dao et al. 2023), which two
// threads can share.  Cuts lie at fixed positions, so the sums do not depend on chunk or company.
#include "pool.hpp"
#include "vector.hpp"

using namespace lockgate;

namespace {

constexpr long kStretch = 128;
constexpr long kSpan = 512;
constexpr long kRowsMax = 48;  // query rows a task
constexpr long kHeadMax = 256;

struct Shape {
    long heads, kv_heads, d;
    float scale, epsilon;
    long window;  // 0: none
    const float *q_norm, *k_norm;  // (d) or null

    long group() const { return heads / kv_heads; }
    long block_numbers() const { return 2 * kv_heads * kBlockTokens * d; }
};

// One head: norm, then rotate pairs (i, i + d/2) by cos and sin (d/2 each; null: no rotation).
void turn(const bf16* from, bf16* to, const Shape& shape, const float* norm, const float* cosine,
          const float* sine) {
    const long d = shape.d, half = d / 2;
    alignas(64) float x[kHeadMax];
    for (long i = 0; i < d; i += 16) _mm512_store_ps(x + i, widen(from + i));
    if (norm) {
        __m512 squares = _mm512_setzero_ps();
        for (long i = 0; i < d; i += 16) {
            const __m512 value = _mm512_load_ps(x + i);
            squares = _mm512_fmadd_ps(value, value, squares);
        }
        const float by = 1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / (float)d + shape.epsilon);
        for (long i = 0; i < d; i += 16) {
            const __m512 normed = _mm512_mul_ps(_mm512_mul_ps(_mm512_load_ps(x + i), _mm512_set1_ps(by)),
                                                _mm512_loadu_ps(norm + i));
            // rounded as the twin rounds before it rotates
            alignas(32) bf16 rounded[16];
            narrow(rounded, normed);
            _mm512_store_ps(x + i, widen(rounded));
        }
    }
    if (!cosine) {
        for (long i = 0; i < d; i += 16) narrow(to + i, _mm512_load_ps(x + i));
        return;
    }
    for (long i = 0; i < half; i += 16) {
        const __m512 a = _mm512_load_ps(x + i), b = _mm512_load_ps(x + half + i);
        const __m512 c = _mm512_loadu_ps(cosine + i), s = _mm512_loadu_ps(sine + i);
        narrow(to + i, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        narrow(to + half + i, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
    }
}

// One token's key and value of one kv head to their place in a block.
void store(const Shape& shape, const bf16* key, const bf16* value, bf16* block, long kv_head, long at) {
    const long d = shape.d;
    bf16* keys = block + kv_head * kBlockTokens * d;
    bf16* values = block + (shape.kv_heads + kv_head) * kBlockTokens * d;
    for (long i = 0; i < d / 2; ++i) std::memcpy(keys + (i * kBlockTokens + at) * 2, key + 2 * i, 4);
    for (long i = 0; i < d; ++i) values[((at / 2) * d + i) * 2 + at % 2] = value[i];
}

// Queries of `tokens` neighbouring positions that share a kv head: rows t·group + g.
struct Rows {
    long count, group;
    long first_position;
    alignas(64) bf16 q[kRowsMax * kHeadMax];
    alignas(64) float scores[kRowsMax * kStretch];
    alignas(64) bf16 weights[kRowsMax * kStretch];
    alignas(64) float found[kRowsMax * kHeadMax];  // unnormed
    float most[kRowsMax], sum[kRowsMax];
};

struct Score {
    Rows& rows;
    const Shape& shape;
    const bf16* keys;
    long column;

    template <int R>
    void run(long first) {
        __m512 sums[R][2];
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        tile<R>(rows.q + first * shape.d, shape.d, keys, 2 * kBlockTokens, shape.d / 2, sums);
        for (int r = 0; r < R; ++r) {
            float* to = rows.scores + (first + r) * kStretch + column;
            _mm512_store_ps(to, sums[r][0]);
            _mm512_store_ps(to + 16, sums[r][1]);
        }
    }
};

struct Mix {
    Rows& rows;
    const Shape& shape;
    const bf16* const* values;
    long blocks;
    long feature;

    template <int R>
    void run(long first) {
        __m512 sums[R][2];
        for (int r = 0; r < R; ++r)
            for (int h = 0; h < 2; ++h)
                sums[r][h] = _mm512_load_ps(rows.found + (first + r) * shape.d + feature + 16 * h);
        for (long block = 0; block < blocks; ++block)
            tile<R>(rows.weights + first * kStretch + block * kBlockTokens, kStretch,
                    values[block] + 2 * feature, 2 * shape.d, kBlockTokens / 2, sums);
        for (int r = 0; r < R; ++r)
            for (int h = 0; h < 2; ++h)
                _mm512_store_ps(rows.found + (first + r) * shape.d + feature + 16 * h, sums[r][h]);
    }
};

// Scores to weights for keys start … start + 128 of every row, and what was found so far scaled to
// the new maximum.
void soften(Rows& rows, const Shape& shape, long start, long padded) {
    const float none = -__builtin_inff();
    for (long r = 0; r < rows.count; ++r) {
        const long position = rows.first_position + r / rows.group;
        const long low = shape.window && position >= shape.window ? position - shape.window + 1 : 0;
        float* scores = rows.scores + r * kStretch;
        __m512 most = _mm512_set1_ps(none);
        for (long i = 0; i < padded; i += 16) {
            const __m512i key = _mm512_add_epi32(
                _mm512_set1_epi32((int)(start + i)),
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
            const __mmask16 seen = _mm512_cmple_epi32_mask(key, _mm512_set1_epi32((int)position)) &
                                   _mm512_cmpge_epi32_mask(key, _mm512_set1_epi32((int)low));
            const __m512 score = _mm512_mask_mul_ps(_mm512_set1_ps(none), seen, _mm512_load_ps(scores + i),
                                                    _mm512_set1_ps(shape.scale));
            _mm512_store_ps(scores + i, score);
            most = _mm512_max_ps(most, score);
        }
        const float before = rows.most[r];
        const float here = _mm512_reduce_max_ps(most);
        const float now = here > before ? here : before;
        // −∞ still: this row has seen no key yet, or NaN alone, which has to show
        const float base = now == none ? 0.0f : now;
        bf16* weights = rows.weights + r * kStretch;
        __m512 sum = _mm512_setzero_ps();
        for (long i = 0; i < padded; i += 16) {
            const __m512 weight = exp512(_mm512_sub_ps(_mm512_load_ps(scores + i), _mm512_set1_ps(base)));
            sum = _mm512_add_ps(sum, weight);
            narrow(weights + i, weight);
        }
        const __m512 fade = exp512(_mm512_set1_ps(before - base));
        if (now != before)
            for (long i = 0; i < shape.d; i += 16) {
                float* at = rows.found + r * shape.d + i;
                _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), fade));
            }
        rows.sum[r] = rows.sum[r] * _mm512_cvtss_f32(fade) + _mm512_reduce_add_ps(sum);
        rows.most[r] = now;
    }
}

// One span of keys: `rows` ends with its maximum, sum and unnormed mixture.
void attend_span(Rows& rows, const Shape& shape, const bf16* memory, const int32_t* table, long kv_head,
                 long from, long to) {
    for (long r = 0; r < rows.count; ++r) rows.most[r] = -__builtin_inff(), rows.sum[r] = 0.0f;
    std::memset(rows.found, 0, sizeof(float) * rows.count * shape.d);
    const long head_numbers = kBlockTokens * shape.d;
    for (long start = from; start < to; start += kStretch) {
        const long end = start + kStretch < to ? start + kStretch : to;
        const long blocks = (end - start + kBlockTokens - 1) / kBlockTokens;
        const bf16* values[kStretch / kBlockTokens];
        for (long b = 0; b < blocks; ++b) {
            const bf16* block = memory + table[start / kBlockTokens + b] * shape.block_numbers();
            values[b] = block + (shape.kv_heads + kv_head) * head_numbers;
            each_tile(rows.count, Score{rows, shape, block + kv_head * head_numbers, b * kBlockTokens});
        }
        soften(rows, shape, start, blocks * kBlockTokens);
        for (long feature = 0; feature < shape.d; feature += kColumns)
            each_tile(rows.count, Mix{rows, shape, values, blocks, feature});
    }
}

// What a span found, kept until its sequence's spans are merged.
struct Part {
    float most, sum;
};

void merge(float* found, Part& whole, const float* more, Part part, long d) {
    if (part.sum == 0.0f) return;
    const float most = part.most > whole.most ? part.most : whole.most;
    const float ours = whole.sum == 0.0f ? 0.0f : _mm512_cvtss_f32(exp512(_mm512_set1_ps(whole.most - most)));
    const float theirs = _mm512_cvtss_f32(exp512(_mm512_set1_ps(part.most - most)));
    for (long i = 0; i < d; i += 16)
        _mm512_storeu_ps(found + i, _mm512_fmadd_ps(_mm512_loadu_ps(found + i), _mm512_set1_ps(ours),
                                                    _mm512_mul_ps(_mm512_loadu_ps(more + i), _mm512_set1_ps(theirs))));
    whole = {most, whole.sum * ours + part.sum * theirs};
}

void finish(bf16* out, const float* found, float sum, long d) {
    for (long i = 0; i < d; i += 16)
        narrow(out + i, _mm512_div_ps(_mm512_loadu_ps(found + i), _mm512_set1_ps(sum)));
}

}  // namespace

extern "C" {

// One task of a step: tokens first … first + count of the batch, one sequence's, at `position` and on;
// its blocks are table[row · width …].  Of keys, spans `span` … `span + spans`.  Where a tile's spans
// are several tasks, its parts lie at `part` (and on) of the work space, else `part` is −1.
struct lockgate_task {
    int32_t first, count, position, row, span, spans, part, unused;
};

// floats of work space a part of one query row takes
long lockgate_part_floats(long d) { return d + 16; }

// qkv (tokens, heads + 2·kv_heads, d) bf16 → mixed (tokens, heads, d) bf16; d % 32 == 0.
//   memory       this layer's blocks (above);  places (tokens): block · 32 + offset of each token
//   positions    (tokens) in their sequences, rows of cosine, sine (context, d / 2) float32; these
//                null: no rotation
//   tasks        each for every kv head;  merges: those of them (by index) that begin a split tile
//   work         parts · kv_heads · group · part_floats
void lockgate_attend(const bf16* qkv, bf16* mixed, bf16* memory, long tokens, const int32_t* places, const int32_t* positions,
                     const float* cosine, const float* sine, const int32_t* table, long width,
                     const lockgate_task* tasks, long task_count, const int32_t* merges, long merge_count,
                     float* work, long heads, long kv_heads, long d, float scale, long window,
                     const float* q_norm, const float* k_norm, float epsilon) {
    const Shape shape{heads, kv_heads, d, scale, epsilon, window, q_norm, k_norm};
    const long stride = (heads + 2 * kv_heads) * d, group = shape.group();
    const long part_floats = lockgate_part_floats(d);
    constexpr long kTokens = 8;  // a piece
    in_parallel((tokens + kTokens - 1) / kTokens, [&](long piece) {
        for (long token = piece * kTokens; token < (piece + 1) * kTokens && token < tokens; ++token) {
            bf16* block = memory + places[token] / kBlockTokens * shape.block_numbers();
            for (long head = 0; head < kv_heads; ++head) {
                alignas(64) bf16 key[kHeadMax];
                const bf16* from = qkv + token * stride + (heads + head) * d;
                const long angle = positions[token] * (d / 2);
                turn(from, key, shape, k_norm, cosine ? cosine + angle : nullptr, sine + angle);
                store(shape, key, from + kv_heads * d, block, head, places[token] % kBlockTokens);
            }
        }
    });
    in_parallel(task_count * kv_heads, [&](long at) {
        static thread_local Rows rows;
            const lockgate_task& task = tasks[at / kv_heads];
            const long kv_head = at % kv_heads;
            rows.group = group;
            rows.count = task.count * group;
            rows.first_position = task.position;
            for (long t = 0; t < task.count; ++t)
                for (long g = 0; g < group; ++g)
                    turn(qkv + (task.first + t) * stride + (kv_head * group + g) * d,
                         rows.q + (t * group + g) * d, shape, q_norm,
                         cosine ? cosine + (task.position + t) * (d / 2) : nullptr,
                         sine + (task.position + t) * (d / 2));
            const int32_t* blocks = table + task.row * width;
            const long end = task.position + task.count;
            const auto attend = [&](long span) {
                const long from = span * kSpan, to = from + kSpan < end ? from + kSpan : end;
                attend_span(rows, shape, memory, blocks, kv_head, from, to);
            };
            const auto out = [&](long r) {
                return mixed + ((task.first + r / group) * heads + kv_head * group + r % group) * d;
            };
            attend(task.span);
            if (task.part >= 0) {
                for (long r = 0; r < rows.count; ++r) {
                    float* to = work + ((task.part * kv_heads + kv_head) * group * task.count + r) * part_floats;
                    to[0] = rows.most[r], to[1] = rows.sum[r];
                    std::memcpy(to + 16, rows.found + r * d, sizeof(float) * d);
                }
                return;
            }
            if (task.spans == 1) {
                for (long r = 0; r < rows.count; ++r) finish(out(r), rows.found + r * d, rows.sum[r], d);
                return;
            }
            alignas(64) static thread_local float whole[kRowsMax * kHeadMax];
            Part parts[kRowsMax];
            std::memcpy(whole, rows.found, sizeof(float) * rows.count * d);
            for (long r = 0; r < rows.count; ++r) parts[r] = {rows.most[r], rows.sum[r]};
            for (long span = task.span + 1; span < task.span + task.spans; ++span) {
                attend(span);
                for (long r = 0; r < rows.count; ++r)
                    merge(whole + r * d, parts[r], rows.found + r * d, {rows.most[r], rows.sum[r]}, d);
            }
            for (long r = 0; r < rows.count; ++r) finish(out(r), whole + r * d, parts[r].sum, d);
    });
    in_parallel(merge_count * kv_heads, [&](long at) {
            // split tiles have one token: its parts follow one another
            const lockgate_task* task = tasks + merges[at / kv_heads];
            const long kv_head = at % kv_heads;
            for (long g = 0; g < group; ++g) {
                alignas(64) float whole[kHeadMax];
                const auto part = [&](long n) {
                    return work + (((task->part + n) * kv_heads + kv_head) * group + g) * part_floats;
                };
                Part sums{part(0)[0], part(0)[1]};
                std::memcpy(whole, part(0) + 16, sizeof(float) * d);
                for (long n = 1; n < task->spans; ++n)
                    merge(whole, sums, part(n) + 16, {part(n)[0], part(n)[1]}, d);
                finish(mixed + (task->first * heads + kv_head * group + g) * d, whole, sums.sum, d);
            }
    });
}
}

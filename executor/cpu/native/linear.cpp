// y = x·Wᵀ (+ bias) over weights laid out once, in strips of 32 output columns.
//
//   bf16   [strip][k / 2][32 columns][2]                                        2 bytes a weight
//   int4   [strip][k / 32][8 × 64 bytes of nibbles, 32 scales, 32 offsets]      0.625 bytes a weight
//   int8   [strip][k / 32][16 × 64 bytes of nibbles, 32 scales]                 1.0625 bytes a weight
//
// The last two are exact for GGUF's Q4_0, Q4_1 and Q8_0: w = d·q + m in blocks of 32, so a block adds
// d·Σ q·x + m·Σ x, where q and x are bf16 without rounding and all sums are float32.  A shift and one
// permutation of a table turn 32 nibbles into bf16 (the table is doubled, so the fifth index bit may
// be dirt).  Four nibbles of a 16-bit word belong to the two halves of the strip and, in int4, to two
// pairs of k; in int8 to the low and the high half of one number, q = 16·h + l, multiplied one after
// the other.
#include "pool.hpp"
#include "strips.hpp"
#include "vector.hpp"

using namespace lockgate;

namespace {

constexpr long kQuant = 32;              // weights a block

struct Int4 {
    static constexpr int kVectors = 8, kPairs = 2;  // of nibbles a block; of k a vector
    static constexpr bool kOffset = true;
    static constexpr long kNibbleBytes = 64 * kVectors, kBlockBytes = kNibbleBytes + 4 * kColumns;
};

struct Int8 {
    static constexpr int kVectors = 16, kPairs = 1;
    static constexpr bool kOffset = false;
    static constexpr long kNibbleBytes = 64 * kVectors, kBlockBytes = kNibbleBytes + 2 * kColumns;
};
struct Plain {
    const bf16* x;
    long k;
    const bf16* strip;
    long column;
    const Out& out;

    template <int R>
    void run(long first) {
        __m512 sums[R][2];
        for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        tile<R>(x + first * k, k, strip, 2 * kColumns, k / 2, sums);
        for (int r = 0; r < R; ++r) out.store(row + first + r, column, sums[r][0], sums[r][1]);
    }

    long row;  // of the first of x
};

// bf16 of `step`·(nibble + `from`), twice over.
inline __m512i table_of(int step, int from) {
    alignas(64) uint16_t table[32];
    for (int i = 0; i < 32; ++i) table[i] = narrow_one((float)(step * (i % 16 + from)));
    return _mm512_load_si512(table);
}

// Rows of x against one strip, 16 columns at a time: a vector of nibbles is expanded in a register,
// used for all rows and forgotten.  `Chains` sums a row hide the latency of the product where the
// rows alone do not.
template <class Format>
struct Quantised {
    const bf16* x;
    long k;
    const float* sums_of_x;
    long blocks;
    const uint8_t* strip;
    long column;
    const Out& out;
    long row;  // of the first of x

    template <int R>
    void run(long first) {
        constexpr int Chains = R == 1 ? 8 : R <= 3 ? 4 : R <= 6 ? 2 : 1;
        const __m512i low = table_of(1, 0), high = Format::kPairs == 2 ? low : table_of(16, -8);
        alignas(64) float left[R][16];
        for (int half = 0; half < 2; ++half) {
            __m512 total[R];
            for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
            const uint8_t* at = strip;
            for (long block = 0; block < blocks; ++block, at += Format::kBlockBytes) {
                __m512 sums[R][Chains];
                for (int r = 0; r < R; ++r)
                    for (int c = 0; c < Chains; ++c) sums[r][c] = _mm512_setzero_ps();
                const bf16* mine = x + first * k + block * kQuant;
#pragma GCC unroll 16
                for (int v = 0; v < Format::kVectors; ++v) {
                    const __m512i words =
                        _mm512_srl_epi16(_mm512_loadu_si512(at + 64 * v), _mm_cvtsi32_si128(4 * half));
#pragma GCC unroll 2
                    for (int j = 0; j < 2; ++j) {
                        const __m512i index = j ? _mm512_srli_epi16(words, 8) : words;
                        const __m512bh q = (__m512bh)_mm512_permutexvar_epi16(index, j ? high : low);
                        const int pair = Format::kPairs == 2 ? 2 * v + j : v;
#pragma GCC unroll 12
                        for (int r = 0; r < R; ++r) {
                            __m512& sum = sums[r][(2 * v + j) % Chains];
                            sum = _mm512_dpbf16_ps(sum, spread_pair(mine + r * k + 2 * pair), q);
                        }
                    }
                }
                const uint8_t* scales = at + Format::kNibbleBytes + 32 * half;
                const __m512 d = half_floats(scales);
                for (int r = 0; r < R; ++r) {
                    __m512 sum = sums[r][0];
                    for (int c = 1; c < Chains; ++c) sum = _mm512_add_ps(sum, sums[r][c]);
                    total[r] = _mm512_fmadd_ps(d, sum, total[r]);
                    if constexpr (Format::kOffset) {
                        const __m512 offset = _mm512_set1_ps(sums_of_x[(first + r) * blocks + block]);
                        total[r] = _mm512_fmadd_ps(half_floats(scales + 64), offset, total[r]);
                    }
                }
            }
            for (int r = 0; r < R; ++r)
                if (half)
                    out.store(row + first + r, column, _mm512_load_ps(left[r]), total[r]);
                else
                    _mm512_store_ps(left[r], total[r]);
        }
    }
};

void block_sums(const bf16* x, long count, float* sums) {
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    for (long at = 0; at < count; ++at)
        sums[at] = _mm512_reduce_add_ps(
            _mm512_dpbf16_ps(_mm512_setzero_ps(), load_pairs(x + at * kQuant), ones));
}

template <class Format>
void by_blocks(const bf16* x, long m, long k, const uint8_t* packed, const float* sums, const Out& out) {
    const long strips = strips_of(out.columns), blocks = k / kQuant;
    const long strip_bytes = blocks * Format::kBlockBytes;
    const long grain = grain_of(m, 2 * strip_bytes);
    in_parallel(pieces_of(strips, grain), [&](long piece) {
        for (long strip = piece * grain; strip < (piece + 1) * grain && strip < strips; ++strip)
            each_tile(m, Quantised<Format>{x, k, sums, blocks, packed + strip * strip_bytes,
                                           strip * kColumns, out, 0});
    });
}

}  // namespace

extern "C" {

// `x` (m, k) bf16, k even, m perhaps 0; `out` (m, n) bf16, or float32 where `wide`; `bias` (n) or null.
void lockgate_linear_bf16(const bf16* x, long m, long k, long n, const bf16* packed,
                          const float* bias, void* out, int wide) {
    if (m == 0) return;  // a step that samples nothing has no rows after its last attention
    const Out to{out, n, wide != 0, bias};
    const long strips = strips_of(n);
    const long each = rows_at_once(m, k), parts = (m + each - 1) / each;
    const long grain = grain_of(m, 2 * k * kColumns);
    in_parallel(parts * pieces_of(strips, grain), [&](long piece) {
        const long per_part = pieces_of(strips, grain);
        const long row = piece / per_part * each, first = piece % per_part * grain;
        const long rows = m - row < each ? m - row : each;
        for (long strip = first; strip < first + grain && strip < strips; ++strip)
            each_tile(rows, Plain{x + row * k, k, packed + strip * k * kColumns, strip * kColumns, to, row});
    });
}

// As above; k a multiple of 32; `sums` (m, k / 32) float32 to work in.
void lockgate_linear_int4(const bf16* x, long m, long k, long n, const uint8_t* packed,
                          const float* bias, void* out, int wide, float* sums) {
    if (m == 0) return;
    block_sums(x, m * (k / kQuant), sums);
    by_blocks<Int4>(x, m, k, packed, sums, Out{out, n, wide != 0, bias});
}

// As above, without sums.
void lockgate_linear_int8(const bf16* x, long m, long k, long n, const uint8_t* packed,
                          const float* bias, void* out, int wide) {
    if (m == 0) return;
    by_blocks<Int8>(x, m, k, packed, nullptr, Out{out, n, wide != 0, bias});
}

long lockgate_packed_bytes_bf16(long n, long k) { return strips_of(n) * k * kColumns * 2; }
long lockgate_packed_bytes_int4(long n, long k) { return strips_of(n) * (k / kQuant) * Int4::kBlockBytes; }
long lockgate_packed_bytes_int8(long n, long k) { return strips_of(n) * (k / kQuant) * Int8::kBlockBytes; }

// `weight` (n, k) bf16 → strips; columns beyond n are zero.
void lockgate_pack_bf16(const bf16* weight, long n, long k, bf16* packed) {
    in_parallel(strips_of(n), [&](long strip) {
        for (long pair = 0; pair < k / 2; ++pair)
            for (long c = 0; c < kColumns; ++c) {
                const long column = strip * kColumns + c;
                bf16* at = packed + ((strip * (k / 2) + pair) * kColumns + c) * 2;
                at[0] = column < n ? weight[column * k + 2 * pair] : 0;
                at[1] = column < n ? weight[column * k + 2 * pair + 1] : 0;
            }
    });
}

// `blocks` as GGUF has them: (n, k / 32) of fp16 d, [fp16 m,] 16 bytes, whose low nibbles are the
// first 16 weights and the high ones the rest.  Without m (`q4_0`) a weight is d·(q − 8).
void lockgate_pack_int4(const uint8_t* blocks, long n, long k, int has_offset, uint8_t* packed) {
    const long count = k / kQuant, each = has_offset ? 20 : 18;
    in_parallel(strips_of(n), [&](long strip) {
        for (long block = 0; block < count; ++block) {
            uint8_t* to = packed + (strip * count + block) * Int4::kBlockBytes;
            std::memset(to, 0, Int4::kBlockBytes);
            uint16_t* words = (uint16_t*)to;
            uint16_t* scales = (uint16_t*)(to + Int4::kNibbleBytes);
            for (long c = 0; c < kColumns && strip * kColumns + c < n; ++c) {
                const uint8_t* from = blocks + ((strip * kColumns + c) * count + block) * each;
                uint16_t d, m;
                std::memcpy(&d, from, 2);
                if (has_offset) {
                    std::memcpy(&m, from + 2, 2);
                } else {
                    m = (uint16_t)_cvtss_sh(-8.0f * _cvtsh_ss(d), 0);  // exact: a power of two
                }
                scales[c] = d;
                scales[kColumns + c] = m;
                const uint8_t* nibbles = from + each - 16;
                for (long i = 0; i < kQuant; ++i) {
                    const uint16_t q = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
                    const long pair = i / 2, half = c / 16;
                    const long word = (pair / 2) * 32 + (c % 16) * 2 + (i & 1);
                    words[word] |= (uint16_t)(q << (4 * ((pair & 1) * 2 + half)));
                }
            }
        }
    });
}

// `blocks` as GGUF's Q8_0: (n, k / 32) of fp16 d and 32 int8.
void lockgate_pack_int8(const uint8_t* blocks, long n, long k, uint8_t* packed) {
    const long count = k / kQuant, each = 34;
    in_parallel(strips_of(n), [&](long strip) {
        for (long block = 0; block < count; ++block) {
            uint8_t* to = packed + (strip * count + block) * Int8::kBlockBytes;
            std::memset(to, 0, Int8::kBlockBytes);
            uint16_t* words = (uint16_t*)to;
            for (long c = 0; c < kColumns && strip * kColumns + c < n; ++c) {
                const uint8_t* from = blocks + ((strip * kColumns + c) * count + block) * each;
                std::memcpy(to + Int8::kNibbleBytes + 2 * c, from, 2);
                for (long i = 0; i < kQuant; ++i) {
                    const int q = (int8_t)from[2 + i];
                    const long word = (i / 2) * 32 + (c % 16) * 2 + (i & 1), half = c / 16;
                    words[word] |= (uint16_t)((q & 15) << (4 * half));
                    words[word] |= (uint16_t)(((q >> 4) + 8) << (8 + 4 * half));
                }
            }
        }
    });
}

// How many threads all kernels may use, the caller's included.
void lockgate_threads(int threads) { Pool::shared().grow(threads); }
}

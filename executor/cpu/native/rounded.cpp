// y = x·Wᵀ (+ bias) with x rounded to 8 bits, by the byte products of AVX512-VNNI: four a lane where
// bf16 has two.
//
// A row of x is cut into groups of 32: a = round(x / s), s = the group's largest magnitude / 127.
// Products of a group are summed as integers, exactly, and added to a float32 sum, group by group in
// one order, whatever rows are beside.  Weights lie in strips of 32 output columns:
//
//   column    [strip][k / 4][32 columns][4] bytes, then 32 steps, 32 lows     1 byte a weight
//             w = step·u + low, u of 0 … 255: one grid a column
//   nibbles   [strip][k / 32][8 × 64 bytes, 32 scales, 32 offsets]            0.625 bytes a weight
//             GGUF's Q4_0 and Q4_1 exactly: w = d·q + m in blocks of 32
//
// What lows and offsets add is a column's number times Σ s·a of the row or group.  A group with an
// infinity or a not-a-number gets s = NaN, and so does every result of its row.
#include "pool.hpp"
#include "strips.hpp"
#include "vector.hpp"

#pragma GCC target("avx512vnni")  // the callers ask whether the processor has it

using namespace lockgate;

namespace {

constexpr long kGroup = 32;
constexpr int kFewRows = 8, kManyRows = 4;  // of a tile; few read a strip once, many leave more registers
constexpr uint16_t kNoNumber = 0x7f80;   // bf16 magnitudes from here on are inf and NaN
constexpr uint16_t kNothing = 0x0400;    // below 2^-119 a group is zero: 127 / it would be infinite

// x, rounded.  In memory of the caller's, `lockgate_rounded_bytes` of it.
struct Rounded {
    float* scales;   // (m, k / 32) s
    float* sums;     // (m, k / 32) s·Σa
    float* totals;   // (m) Σ s·a of the row
    int8_t* values;  // (m, k)

    Rounded(void* work, long m, long k)
        : scales((float*)work), sums(scales + m * (k / kGroup)), totals(sums + m * (k / kGroup)),
          values((int8_t*)(totals + m)) {}
};

void round_row(const bf16* x, long k, int8_t* values, float* scales, float* sums, float* total) {
    float all = 0;
    for (long group = 0; group < k / kGroup; ++group, x += kGroup, values += kGroup) {
        const __m512i pairs = _mm512_loadu_si512(x);
        const __m512i sizes = _mm512_and_si512(pairs, _mm512_set1_epi16(0x7fff));
        const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(sizes), _mm512_extracti64x4_epi64(sizes, 1));
        const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        // the largest of eight is the complement of the least complement
        const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
        const uint16_t largest = (uint16_t)~_mm_extract_epi16(least, 0);
        const bool bad = largest >= kNoNumber, none = largest < kNothing;
        const float most = widen_one(largest);
        const __m512 factor = _mm512_set1_ps(bad || none ? 0.0f : 127.0f / most);
        __m128i bytes[2];
        for (int part = 0; part < 2; ++part) {
            const __m512 numbers = bad ? _mm512_setzero_ps() : widen(x + 16 * part);
            bytes[part] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(numbers, factor)));
            _mm_storeu_si128((__m128i*)(values + 16 * part), bytes[part]);
        }
        const __m256i both = _mm256_set_m128i(bytes[1], bytes[0]);
        const __m256i eight = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both);
        const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        const int sum = _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
        scales[group] = bad ? __builtin_nanf("") : none ? 0.0f : most / 127.0f;
        sums[group] = scales[group] * (float)sum;
        all += sums[group];
    }
    *total = all;
}

void round_rows(const bf16* x, long m, long k, const Rounded& to) {
    const long groups = k / kGroup, each = 1 + (1 << 13) / k;  // some microseconds a piece
    in_parallel((m + each - 1) / each, [&](long piece) {
        for (long row = piece * each; row < (piece + 1) * each && row < m; ++row)
            round_row(x + row * k, k, to.values + row * k, to.scales + row * groups, to.sums + row * groups,
                      to.totals + row);
    });
}

inline __m512i spread_four(const int8_t* at) {
    int32_t four;
    std::memcpy(&four, at, sizeof four);
    return _mm512_set1_epi32(four);
}

struct Column {
    static constexpr long kGroupBytes = kGroup * kColumns, kTailBytes = 2 * 4 * kColumns;

    static void load(const uint8_t* group, int four, __m512i& left, __m512i& right) {
        left = _mm512_load_si512(group + 128 * four);
        right = _mm512_load_si512(group + 128 * four + 64);
    }

    struct Scales {
        explicit Scales(const uint8_t*) {}

        __m512 add(int, __m512 total, __m512 sum, __m512 scale, const float*) const {
            return _mm512_fmadd_ps(scale, sum, total);
        }
    };

    static __m512 finish(const uint8_t* tail, int half, __m512 total, float row) {
        const float* steps = (const float*)tail + 16 * half;
        return _mm512_fmadd_ps(_mm512_load_ps(steps), total,
                               _mm512_mul_ps(_mm512_load_ps(steps + kColumns), _mm512_set1_ps(row)));
    }
};

struct Nibbles {
    static constexpr long kNibbleBytes = kGroup * kColumns / 2;
    static constexpr long kGroupBytes = kNibbleBytes + 2 * 2 * kColumns, kTailBytes = 0;

    static void load(const uint8_t* group, int four, __m512i& left, __m512i& right) {
        const __m512i both = _mm512_load_si512(group + 64 * four), low = _mm512_set1_epi8(15);
        left = _mm512_and_si512(both, low);
        right = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }

    struct Scales {
        __m512 d[2], m[2];

        explicit Scales(const uint8_t* group) {
            for (int half = 0; half < 2; ++half) {
                d[half] = half_floats(group + kNibbleBytes + 32 * half);
                m[half] = half_floats(group + kNibbleBytes + 2 * kColumns + 32 * half);
            }
        }

        __m512 add(int half, __m512 total, __m512 sum, __m512 scale, const float* offset) const {
            total = _mm512_fmadd_ps(_mm512_mul_ps(d[half], scale), sum, total);
            return _mm512_fmadd_ps(m[half], _mm512_set1_ps(*offset), total);
        }
    };

    static __m512 finish(const uint8_t*, int, __m512 total, float) { return total; }
};

// Rows of x against one strip.
template <class Format>
struct Product {
    const Rounded& x;
    long k, row;  // of the first of these rows
    const uint8_t* strip;
    long column;
    const Out& out;

    template <int R>
    void run(long first) {
        const long groups = k / kGroup, begin = row + first;
        const int8_t* values = x.values + begin * k;
        const float *scales = x.scales + begin * groups, *sums = x.sums + begin * groups;
        __m512 totals[R][2];
        for (int r = 0; r < R; ++r) totals[r][0] = totals[r][1] = _mm512_setzero_ps();
        const uint8_t* at = strip;
        for (long group = 0; group < groups; ++group, at += Format::kGroupBytes) {
            __m512i products[R][2];
            for (int r = 0; r < R; ++r) products[r][0] = products[r][1] = _mm512_setzero_si512();
#pragma GCC unroll 8
            for (int four = 0; four < 8; ++four) {
                __m512i left, right;
                Format::load(at, four, left, right);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const __m512i each = spread_four(values + r * k + group * kGroup + 4 * four);
                    products[r][0] = _mm512_dpbusd_epi32(products[r][0], left, each);
                    products[r][1] = _mm512_dpbusd_epi32(products[r][1], right, each);
                }
            }
            const typename Format::Scales of(at);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const __m512 scale = _mm512_set1_ps(scales[r * groups + group]);
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half)
                    totals[r][half] = of.add(half, totals[r][half], _mm512_cvtepi32_ps(products[r][half]),
                                             scale, sums + r * groups + group);
            }
        }
        for (int r = 0; r < R; ++r)
            out.store(begin + r, column, Format::finish(at, 0, totals[r][0], x.totals[begin + r]),
                      Format::finish(at, 1, totals[r][1], x.totals[begin + r]));
    }
};

template <class Format>
constexpr long strip_bytes(long k) {
    return k / kGroup * Format::kGroupBytes + Format::kTailBytes;
}

template <class Body>
void tiles(long rows, Body&& body) {
    rows <= 2 * kFewRows ? each_tile<kFewRows>(rows, body) : each_tile<kManyRows>(rows, body);
}

// Where weights are the larger part of what is read, neighbouring strips to one thread: every other
// strip is no stream for the processor to follow (3072 × 576 at 32 rows: 204 µs, in runs of four 172).
// No longer than leaves each thread a dozen pieces.
long grain_of_run(long m, long k, long strips) {
    constexpr long kRun = 4, kPieces = 12, kRows = 64;
    const long grain = grain_of(m, k * kColumns), fair = strips / (kPieces * Pool::shared().threads());
    const long run = fair < kRun ? fair : kRun;
    return m <= kRows && run > grain ? run : grain;
}

template <class Format>
void multiply(const bf16* x, long m, long k, const uint8_t* packed, const Out& out, void* work) {
    if (m == 0) return;
    const Rounded rounded(work, m, k);
    round_rows(x, m, k, rounded);
    const long strips = strips_of(out.columns);
    const long each = rows_at_once(m, k / 2), parts = (m + each - 1) / each;
    const long grain = grain_of_run(m, k, strips), per_part = pieces_of(strips, grain);
    in_parallel(parts * per_part, [&](long piece) {
        const long row = piece / per_part * each, first = piece % per_part * grain;
        const long rows = m - row < each ? m - row : each;
        for (long strip = first; strip < first + grain && strip < strips; ++strip)
            tiles(rows, Product<Format>{rounded, k, row, packed + strip * strip_bytes<Format>(k), strip * kColumns, out});
    });
}

}  // namespace

extern "C" {

// `x` (m, k) bf16, k a multiple of 32; `work` of lockgate_rounded_bytes, linear in m, at a multiple of 4; the rest as
// lockgate_linear_bf16.
void lockgate_linear_column(const bf16* x, long m, long k, long n, const uint8_t* packed, const float* bias,
                            void* out, int wide, void* work) {
    multiply<Column>(x, m, k, packed, Out{out, n, wide != 0, bias}, work);
}

void lockgate_linear_nibbles(const bf16* x, long m, long k, long n, const uint8_t* packed, const float* bias,
                             void* out, int wide, void* work) {
    multiply<Nibbles>(x, m, k, packed, Out{out, n, wide != 0, bias}, work);
}

long lockgate_rounded_bytes(long m, long k) { return m * (4 * (2 * (k / kGroup) + 1) + k); }
long lockgate_packed_bytes_column(long n, long k) { return strips_of(n) * strip_bytes<Column>(k); }
long lockgate_packed_bytes_nibbles(long n, long k) { return strips_of(n) * strip_bytes<Nibbles>(k); }

// `weight` (n, k) bf16, finite → strips; columns beyond n are zero.  The grid of a column reaches from
// its least weight to its largest.
void lockgate_pack_column(const bf16* weight, long n, long k, uint8_t* packed) {
    in_parallel(strips_of(n), [&](long strip) {
        uint8_t* to = packed + strip * strip_bytes<Column>(k);
        std::memset(to, 0, strip_bytes<Column>(k));
        float* steps = (float*)(to + k * kColumns);
        for (long c = 0; c < kColumns && strip * kColumns + c < n; ++c) {
            const bf16* from = weight + (strip * kColumns + c) * k;
            float low = widen_one(from[0]), high = low;
            for (long i = 1; i < k; ++i) {
                const float each = widen_one(from[i]);
                low = each < low ? each : low, high = each > high ? each : high;
            }
            const double step = ((double)high - low) / 255;
            steps[c] = (float)step, steps[kColumns + c] = low;
            if (step == 0) continue;
            for (long i = 0; i < k; ++i)
                to[(i / 4 * kColumns + c) * 4 + i % 4] = (uint8_t)((widen_one(from[i]) - (double)low) / step + 0.5);
        }
    });
}

// `blocks` as lockgate_pack_int4 has them.
void lockgate_pack_nibbles(const uint8_t* blocks, long n, long k, int has_offset, uint8_t* packed) {
    const long count = k / kGroup, each = has_offset ? 20 : 18;
    in_parallel(strips_of(n), [&](long strip) {
        for (long group = 0; group < count; ++group) {
            uint8_t* to = packed + strip * strip_bytes<Nibbles>(k) + group * Nibbles::kGroupBytes;
            std::memset(to, 0, Nibbles::kGroupBytes);
            uint16_t* scales = (uint16_t*)(to + Nibbles::kNibbleBytes);
            for (long c = 0; c < kColumns && strip * kColumns + c < n; ++c) {
                const uint8_t* from = blocks + ((strip * kColumns + c) * count + group) * each;
                std::memcpy(scales + c, from, 2);
                if (has_offset)
                    std::memcpy(scales + kColumns + c, from + 2, 2);
                else  // exact: a power of two
                    scales[kColumns + c] = (uint16_t)_cvtss_sh(-8.0f * _cvtsh_ss(scales[c]), 0);
                const uint8_t* nibbles = from + each - 16;
                for (long i = 0; i < kGroup; ++i) {
                    const int q = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
                    to[i / 4 * 64 + c % 16 * 4 + i % 4] |= (uint8_t)(q << (c < 16 ? 0 : 4));
                }
            }
        }
    });
}
}

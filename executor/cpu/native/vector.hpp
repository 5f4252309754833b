// What every kernel here is made of: bf16 in, float32 sums, tiles of rows against 32 columns.
//
// A tile's sums run over k in one fixed order, row by row, whatever the number of rows: so a row's
// result never depends on what else is in the batch (the invariant mode rests on this).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockgate {

using bf16 = uint16_t;

constexpr long kColumns = 32;   // of a strip: two vectors of float32
constexpr int kTileRows = 12;   // 24 sums, 2 columns vectors and a broadcast fill the 32 registers
constexpr long kBlockTokens = 32;

inline __m512bh load_pairs(const bf16* at) { return (__m512bh)_mm512_loadu_si512(at); }

// Two neighbouring bf16 in every lane.
inline __m512bh spread_pair(const bf16* at) {
    int32_t pair;
    std::memcpy(&pair, at, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

inline __m512 widen(const bf16* at) {
    __m256i half = _mm256_loadu_si256((const __m256i*)at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline void narrow(bf16* at, __m512 value) {
    _mm256_storeu_si256((__m256i*)at, (__m256i)_mm512_cvtneps_pbh(value));
}

inline float widen_one(bf16 value) {
    uint32_t bits = uint32_t(value) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

// Round to nearest, ties to even.  Not for NaN: the vector conversion keeps those, and all stores
// of results go through it.
inline bf16 narrow_one(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// exp to about 2 ulp: 2^n · 2^f, f in ±½, by Horner over the Taylor series of 2^f.  exp(−inf) = 0.
inline __m512 exp512(__m512 x) {
    __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896f));
    scaled = _mm512_max_ps(_mm512_set1_ps(-150.0f), scaled);  // in this order NaN stays NaN
    __m512 whole = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 part = _mm512_sub_ps(scaled, whole);
    __m512 sum = _mm512_set1_ps(1.5403530e-4f);
    sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(1.33335581e-3f));
    sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(9.61812911e-3f));
    sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(5.55041087e-2f));
    sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(2.40226507e-1f));
    sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(6.93147181e-1f));
    sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(sum, whole);
}

// sums[r][0..1] += Σ over pairs of rows r of `a` (`a_stride` numbers apart) times 32 columns of `b`
// ([pair][column][2], `b_stride` numbers from pair to pair).
template <int R>
inline void tile(const bf16* a, ptrdiff_t a_stride, const bf16* b, ptrdiff_t b_stride, long pairs,
                 __m512 (&sums)[R][2]) {
    for (long pair = 0; pair < pairs; ++pair) {
        const __m512bh left = load_pairs(b), right = load_pairs(b + 32);
        b += b_stride;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const __m512bh each = spread_pair(a + r * a_stride);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], each, left);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], each, right);
        }
        a += 2;
    }
}

// Call `body.template run<R>(first, …)` for `rows` rows in as few tiles as there must be, each as
// full as the others, of at most `Most` rows.
template <int Most = kTileRows, class Body>
inline void each_tile(long rows, Body&& body) {
    const long tiles = (rows + Most - 1) / Most;
    long first = 0;
    for (long at = 0; at < tiles; ++at) {
        const long count = (rows - first) / (tiles - at);
        switch (count) {
#define LOCKGATE_CASE(R) \
    case R:              \
        if constexpr (R <= Most) body.template run<R>(first); \
        break;
            LOCKGATE_CASE(1) LOCKGATE_CASE(2) LOCKGATE_CASE(3) LOCKGATE_CASE(4)
            LOCKGATE_CASE(5) LOCKGATE_CASE(6) LOCKGATE_CASE(7) LOCKGATE_CASE(8)
            LOCKGATE_CASE(9) LOCKGATE_CASE(10) LOCKGATE_CASE(11) LOCKGATE_CASE(12)
#undef LOCKGATE_CASE
        }
        first += count;
    }
}

}  // namespace lockgate

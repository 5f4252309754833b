// What matrix products over strips share: where results go, and how many rows and strips to take at once.
#pragma once

#include "vector.hpp"

namespace lockgate {

struct Out {
    void* data;
    long columns;
    bool wide;  // float32
    const float* bias;

    void store(long row, long column, __m512 left, __m512 right) const {
        for (int half = 0; half < 2; ++half, column += 16) {
            if (column >= columns) return;
            const long left_over = columns - column;
            const __mmask16 mask = left_over >= 16 ? 0xffff : (__mmask16)((1u << left_over) - 1);
            __m512 value = half ? right : left;
            if (bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, bias + column));
            if (wide)
                _mm512_mask_storeu_ps((float*)data + row * columns + column, mask, value);
            else
                _mm256_mask_storeu_epi16((bf16*)data + row * columns + column, mask,
                                         (__m256i)_mm512_cvtneps_pbh(value));
        }
    }
};

inline long strips_of(long n) { return (n + kColumns - 1) / kColumns; }

// Rows of x that stay in the L2 cache beside a strip, in parts as large as one another.
inline long rows_at_once(long m, long k) {
    constexpr long kCacheBytes = 384 << 10;
    const long most = kCacheBytes / (2 * k) > kTileRows ? kCacheBytes / (2 * k) : kTileRows;
    const long parts = (m + most - 1) / most;
    return (m + parts - 1) / parts;
}

// Strips a piece of work: a few microseconds of multiplying or, of few rows, of reading, so that
// claiming one costs little, a thread reads on where it was, and the last piece is soon done.
inline long grain_of(long m, long strip_bytes) {
    const long work = (m < 4 ? 4 : m) * strip_bytes;
    return work >= (1 << 19) ? 1 : (1 << 19) / work;
}

inline long pieces_of(long strips, long grain) { return (strips + grain - 1) / grain; }

inline __m512 half_floats(const uint8_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at));
}

}  // namespace lockgate

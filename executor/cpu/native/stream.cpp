// What happens to the residual stream between the linears: add, norm, gate.
#include "pool.hpp"
#include "vector.hpp"

using namespace lockgate;

namespace {

constexpr long kPiece = 1 << 13;  // numbers; less is not worth sharing

// each(row) for all rows, some together.
template <class Each>
inline void each_row(long rows, long n, const Each& each) {
    const long together = n >= kPiece ? 1 : kPiece / n;
    in_parallel((rows + together - 1) / together, [&](long piece) {
        for (long row = piece * together; row < (piece + 1) * together && row < rows; ++row) each(row);
    });
}

// 1 / sqrt(mean of squares + epsilon).  `at` gives sixteen numbers from an index on; n % 16 == 0.
template <class At>
inline float inverse_rms(long n, float epsilon, At&& at) {
    __m512 squares = _mm512_setzero_ps();
    for (long i = 0; i < n; i += 16) {
        const __m512 value = at(i);
        squares = _mm512_fmadd_ps(value, value, squares);
    }
    return 1.0f / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / (float)n + epsilon);
}

inline __m512 sigmoid(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, exp512(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

}  // namespace

extern "C" {

// x (rows, n) float32 += delta (rows, n) bf16, normed by `after` where given; out = norm of x, bf16.
// `delta` and `after` may be null.  n % 16 == 0.
void lockgate_add_norm(float* x, const bf16* delta, const float* after, const float* weight, bf16* out,
                       long rows, long n, float epsilon) {
    each_row(rows, n, [&](long row) {
        float* mine = x + row * n;
        const bf16* add = delta + row * n;
        if (delta && after) {
            const float by = inverse_rms(n, epsilon, [&](long i) { return widen(add + i); });
            for (long i = 0; i < n; i += 16) {
                const __m512 normed = _mm512_mul_ps(_mm512_mul_ps(widen(add + i), _mm512_set1_ps(by)),
                                                    _mm512_loadu_ps(after + i));
                _mm512_storeu_ps(mine + i, _mm512_add_ps(_mm512_loadu_ps(mine + i), normed));
            }
        } else if (delta) {
            for (long i = 0; i < n; i += 16)
                _mm512_storeu_ps(mine + i, _mm512_add_ps(_mm512_loadu_ps(mine + i), widen(add + i)));
        }
        const float by = inverse_rms(n, epsilon, [&](long i) { return _mm512_loadu_ps(mine + i); });
        for (long i = 0; i < n; i += 16)
            narrow(out + row * n + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(mine + i), _mm512_set1_ps(by)),
                                                    _mm512_loadu_ps(weight + i)));
    });
}

// both (rows, 2·n): gate, then up → out (rows, n) = silu(gate)·up, or gelu (tanh) for `gelu`.
// n % 16 == 0.
void lockgate_gate(const bf16* both, bf16* out, long rows, long n, int gelu) {
    each_row(rows, n, [&](long row) {
        for (long i = 0; i < n; i += 16) {
            const __m512 gate = widen(both + row * 2 * n + i), up = widen(both + row * 2 * n + n + i);
            __m512 inside = gate;
            if (gelu) {  // ½·(1 + tanh u) = sigmoid(2u), u = √(2/π)·(g + 0.044715·g³)
                const __m512 cubic = _mm512_mul_ps(_mm512_mul_ps(gate, gate), _mm512_set1_ps(0.044715f));
                inside = _mm512_mul_ps(_mm512_fmadd_ps(cubic, gate, gate), _mm512_set1_ps(1.5957691216f));
            }
            narrow(out + row * n + i, _mm512_mul_ps(_mm512_mul_ps(gate, sigmoid(inside)), up));
        }
    });
}
}

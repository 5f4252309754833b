// Rows of logits to tokens: the largest, or one drawn with temperature, top-k, min-p and top-p, as
// `executor.sampler` (the twin) says, noise hashed from (seed, position, token) included.
//
// Gumbel noise of 24 bits lies between −2.82 and 16.64: a token whose scaled logit is 19.5 below the
// largest cannot win, whatever the seed, so only tokens above that line are hashed.
#include <algorithm>
#include <cmath>

#include "pool.hpp"
#include "vector.hpp"

using namespace lockgate;

namespace {

constexpr float kReach = 19.5f;

struct Candidate {
    float scaled;
    int32_t token;
};

inline bool likelier(const Candidate& a, const Candidate& b) {
    return a.scaled > b.scaled || (a.scaled == b.scaled && a.token < b.token);
}

// log of positive normal numbers to about 2 ulp: m in [√½, √2), log m = 2·artanh((m−1)/(m+1)).
inline __m512 log512(__m512 x) {
    __m512 power = _mm512_getexp_ps(x);
    __m512 part = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    const __mmask16 large = _mm512_cmp_ps_mask(part, _mm512_set1_ps(1.41421356f), _CMP_GT_OQ);
    part = _mm512_mask_mul_ps(part, large, part, _mm512_set1_ps(0.5f));
    power = _mm512_mask_add_ps(power, large, power, _mm512_set1_ps(1.0f));
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 ratio = _mm512_div_ps(_mm512_sub_ps(part, one), _mm512_add_ps(part, one));
    const __m512 square = _mm512_mul_ps(ratio, ratio);
    __m512 sum = _mm512_set1_ps(2.0f / 9);
    sum = _mm512_fmadd_ps(sum, square, _mm512_set1_ps(2.0f / 7));
    sum = _mm512_fmadd_ps(sum, square, _mm512_set1_ps(2.0f / 5));
    sum = _mm512_fmadd_ps(sum, square, _mm512_set1_ps(2.0f / 3));
    sum = _mm512_fmadd_ps(sum, square, _mm512_set1_ps(2.0f));
    return _mm512_fmadd_ps(power, _mm512_set1_ps(0.693147181f), _mm512_mul_ps(sum, ratio));
}

// Standard Gumbel noise of sixteen tokens (lowbias32, keyed twice; see the twin).
inline __m512 gumbel(__m512i tokens, uint32_t first, uint32_t second) {
    __m512i x = _mm512_mullo_epi32(tokens, _mm512_set1_epi32((int)0x9E3779B9u));
    x = _mm512_add_epi32(x, _mm512_set1_epi32((int)first));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_add_epi32(_mm512_mullo_epi32(x, _mm512_set1_epi32(0x21F0AAAD)), _mm512_set1_epi32((int)second));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x735A2D97));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    const __m512 bits = _mm512_cvtepi32_ps(_mm512_srli_epi32(x, 9));
    const __m512 uniform = _mm512_mul_ps(_mm512_add_ps(bits, _mm512_set1_ps(0.5f)), _mm512_set1_ps(0x1p-23f));
    const __m512 zero = _mm512_setzero_ps();
    return _mm512_sub_ps(zero, log512(_mm512_sub_ps(zero, log512(uniform))));
}

inline __mmask16 first_lanes(long count) { return count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1); }

inline __m512i lanes() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// The first of the largest, or −1 where any is NaN.
int32_t likeliest(const float* row, long n) {
    __m512 most = _mm512_set1_ps(-__builtin_inff());
    __m512i where = lanes();
    __mmask16 broken = 0;
    for (long i = 0; i < n; i += 16) {
        const __mmask16 real = first_lanes(n - i);
        const __m512 value = _mm512_mask_loadu_ps(_mm512_set1_ps(-__builtin_inff()), real, row + i);
        broken |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        const __mmask16 more = _mm512_cmp_ps_mask(value, most, _CMP_GT_OQ);
        most = _mm512_mask_mov_ps(most, more, value);
        where = _mm512_mask_mov_epi32(where, more, _mm512_add_epi32(lanes(), _mm512_set1_epi32((int)i)));
    }
    if (broken) return -1;
    const __mmask16 ties = _mm512_cmp_ps_mask(most, _mm512_set1_ps(_mm512_reduce_max_ps(most)), _CMP_EQ_OQ);
    return _mm512_mask_reduce_min_epi32(ties, where);
}

}  // namespace

extern "C" {

// What one row wants.  `draw` 0: the largest.  top_k 0, top_p 1 and min_gap −inf: no limit; `min_gap`
// is log(min_p).  `first` and `second` key the noise.
struct lockgate_wish {
    int32_t draw;
    float temperature;
    int32_t top_k;
    float top_p;
    float min_gap;
    uint32_t first, second;
    int32_t unused;
};
}

namespace {

// How far below the largest tokens may lie that are worth collecting: the first step within which
// there are `top_k` of them, or else `top_p` of all weights.  Sorting is what is dear.
constexpr float kSteps[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 15, kReach};
constexpr int kStepCount = sizeof kSteps / sizeof *kSteps;

struct Survey {
    float reach;
    double sum;  // of exp(scaled − most) of all tokens at or above the floor
};

Survey survey(const float* row, long n, const lockgate_wish& wish, float most, float floor) {
    const __m512 temperature = _mm512_set1_ps(wish.temperature);
    __m512 all = _mm512_setzero_ps(), masses[kStepCount];
    long counts[kStepCount] = {};
    for (__m512& mass : masses) mass = _mm512_setzero_ps();
    for (long i = 0; i < n; i += 16) {
        const __m512 scaled = _mm512_div_ps(
            _mm512_mask_loadu_ps(_mm512_set1_ps(-__builtin_inff()), first_lanes(n - i), row + i), temperature);
        const __mmask16 here = _mm512_cmp_ps_mask(scaled, _mm512_set1_ps(floor), _CMP_GE_OQ);
        if (!here) continue;
        const __m512 weight = exp512(_mm512_sub_ps(scaled, _mm512_set1_ps(most)));
        all = _mm512_mask_add_ps(all, here, all, weight);
        for (int step = kStepCount - 1; step >= 0; --step) {
            const __mmask16 near =
                _mm512_mask_cmp_ps_mask(here, scaled, _mm512_set1_ps(most - kSteps[step]), _CMP_GE_OQ);
            if (!near) break;
            counts[step] += __builtin_popcount(near);
            masses[step] = _mm512_mask_add_ps(masses[step], near, masses[step], weight);
        }
    }
    const double sum = _mm512_reduce_add_ps(all);
    for (int step = 0; step < kStepCount; ++step)
        if (wish.top_k ? counts[step] >= wish.top_k
                       : _mm512_reduce_add_ps(masses[step]) > (wish.top_p + 1e-4) * sum)
            return {kSteps[step], sum};
    return {__builtin_inff(), sum};
}

// Tokens that together reach top_p, likeliest first; `sum` is of all weights exp(scaled − most).
void keep_nucleus(std::vector<Candidate>& found, float most, double sum, float top_p) {
    double before = 0;
    size_t kept = 0;
    while (kept < found.size() && before < top_p)
        before += std::exp((double)found[kept++].scaled - most) / sum;
    found.resize(kept);
}

// Of tokens at or above `floor`, the one whose scaled logit and noise are the most.
int32_t draw_plain(const float* row, long n, const lockgate_wish& wish, float floor) {
    const __m512 temperature = _mm512_set1_ps(wish.temperature);
    __m512 most = _mm512_set1_ps(-__builtin_inff());
    __m512i where = lanes();
    for (long i = 0; i < n; i += 16) {
        const __mmask16 real = first_lanes(n - i);
        const __m512 scaled = _mm512_div_ps(_mm512_maskz_loadu_ps(real, row + i), temperature);
        const __mmask16 near = _mm512_mask_cmp_ps_mask(real, scaled, _mm512_set1_ps(floor), _CMP_GE_OQ);
        if (!near) continue;
        const __m512i tokens = _mm512_add_epi32(lanes(), _mm512_set1_epi32((int)i));
        const __m512 noisy = _mm512_add_ps(scaled, gumbel(tokens, wish.first, wish.second));
        const __mmask16 more = _mm512_mask_cmp_ps_mask(near, noisy, most, _CMP_GT_OQ);
        most = _mm512_mask_mov_ps(most, more, noisy);
        where = _mm512_mask_mov_epi32(where, more, tokens);
    }
    const __mmask16 ties = _mm512_cmp_ps_mask(most, _mm512_set1_ps(_mm512_reduce_max_ps(most)), _CMP_EQ_OQ);
    return _mm512_mask_reduce_min_epi32(ties, where);
}

int32_t draw(const float* row, long n, const lockgate_wish& wish, int32_t best) {
    const float none = -__builtin_inff();
    const float most = row[best] / wish.temperature;
    const float gap_floor = wish.min_gap == none ? none : most + wish.min_gap;
    const bool nucleus = wish.top_p < 1.0f;
    if (!nucleus && !wish.top_k)
        return draw_plain(row, n, wish, std::max(most - kReach, gap_floor));
    const Survey seen = survey(row, n, wish, most, gap_floor);
    const float floor = std::max(most - seen.reach, gap_floor);
    const __m512 temperature = _mm512_set1_ps(wish.temperature);
    thread_local std::vector<Candidate> found;
    found.clear();
    for (long i = 0; i < n; i += 16) {
        const __mmask16 real = first_lanes(n - i);
        const __m512 scaled = _mm512_div_ps(_mm512_maskz_loadu_ps(real, row + i), temperature);
        alignas(64) float values[16];
        _mm512_store_ps(values, scaled);
        for (unsigned left = _mm512_mask_cmp_ps_mask(real, scaled, _mm512_set1_ps(floor), _CMP_GE_OQ); left;
             left &= left - 1) {
            const int lane = __builtin_ctz(left);
            found.push_back({values[lane], (int32_t)(i + lane)});
        }
    }
    double sum = seen.sum;
    if (wish.top_k && found.size() > (size_t)wish.top_k) {
        std::nth_element(found.begin(), found.begin() + wish.top_k - 1, found.end(), likelier);
        found.resize(wish.top_k);
    }
    if (nucleus) {
        if (wish.top_k) {  // the nucleus of what top_k left
            sum = 0;
            for (const Candidate& each : found) sum += std::exp((double)each.scaled - most);
        }
        std::sort(found.begin(), found.end(), likelier);
        keep_nucleus(found, most, sum, wish.top_p);
    }
    float most_noisy = none;
    int32_t token = best;
    for (size_t i = 0; i < found.size(); i += 16) {
        alignas(64) int32_t tokens[16] = {};
        alignas(64) float noise[16];
        const size_t count = std::min<size_t>(16, found.size() - i);
        for (size_t j = 0; j < count; ++j) tokens[j] = found[i + j].token;
        _mm512_store_ps(noise, gumbel(_mm512_load_si512(tokens), wish.first, wish.second));
        for (size_t j = 0; j < count; ++j) {
            const float noisy = found[i + j].scaled + noise[j];
            if (noisy > most_noisy || (noisy == most_noisy && tokens[j] < token))
                most_noisy = noisy, token = tokens[j];
        }
    }
    return token;
}

}  // namespace

extern "C" {

// logits (rows, n) float32 → a token each; −1 where a row holds NaN.
void lockgate_sample(const float* logits, long rows, long n, const lockgate_wish* wishes, int32_t* tokens) {
    in_parallel(rows, [&](long r) {
        const float* row = logits + r * n;
        const int32_t best = likeliest(row, n);
        // an infinite logit leaves nothing to draw from but itself
        const bool drawn = best >= 0 && wishes[r].draw && std::isfinite(row[best] / wishes[r].temperature);
        tokens[r] = drawn ? draw(row, n, wishes[r], best) : best;
    });
}
}

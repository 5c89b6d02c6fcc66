// Reductions over eight lanes in the order that simd.h promises: lane i with lane i + n/2. Included by the AVX headers.
#pragma once

#include <immintrin.h>

namespace bb {

BB_INLINE float sum_eight(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// Says nothing about NaN.
BB_INLINE float max_eight(__m256 x) {
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
}

}  // namespace bb

// What AVX2 and AVX-512 share: reductions over eight lanes in the order that simd.h promises (lane i with lane i + n/2),
// and products of integers. Included by the AVX headers.
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

// sum += w * x over pairs of 16 bits, or of bytes (w without sign). The compiler by itself would copy every sum.
template <class V>
BB_INLINE void add_products(V& sum, V w, V x) {
    V product;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(w), "v"(x));
}
template <class V>
BB_INLINE V byte_products(V w, V x) {
    V product;
    asm("vpmaddubsw %2, %1, %0" : "=v"(product) : "v"(w), "v"(x));
    return product;
}
template <class V>
BB_INLINE void add_byte_products(V& sum, V w, V x) {
    V product;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(w), "v"(x));
}

}  // namespace bb

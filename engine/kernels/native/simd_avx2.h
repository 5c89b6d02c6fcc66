// Primitives for AVX2 with FMA and F16C: two registers hold the 16 lanes. Included by simd.h only.
#pragma once

#include "simd_x86.h"

namespace bb {

constexpr const char* ISA_NAME = "avx2";
constexpr int REGISTERS = 8;  // of 16 lanes
constexpr bool BYTES_ARE_FASTER = true;  // than products of 16 bits

struct F { __m256 lo, hi; };
struct I { __m256i lo, hi; };
struct Pairs { __m256i lo, hi; };
struct Quads { __m256i lo, hi; };
struct QuadSum { __m256i lo, hi; };  // 16-bit sums: 15 * 128 * 16 fits

BB_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
BB_INLINE F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
BB_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
BB_INLINE F load_part(const float* p, int n) {
    float lanes[LANES] = {};
    std::memcpy(lanes, p, size_t(n) * sizeof(float));
    return load(lanes);
}
BB_INLINE void store(float* p, F x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
BB_INLINE void store_part(float* p, F x, int n) {
    float lanes[LANES];
    store(lanes, x);
    std::memcpy(p, lanes, size_t(n) * sizeof(float));
}
BB_INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
BB_INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
BB_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
BB_INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
BB_INLINE F fma(F a, F b, F c) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(c.lo) : "x"(a.lo), "x"(b.lo));
    asm("vfmadd231ps %2, %1, %0" : "+x"(c.hi) : "x"(a.hi), "x"(b.hi));
    return c;
}
BB_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }  // b where either is NaN
BB_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
BB_INLINE F abs(F a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
BB_INLINE float sum_lanes(F a) { return sum_eight(_mm256_add_ps(a.lo, a.hi)); }
BB_INLINE float max_lanes(F a) {
    const float top = max_eight(_mm256_max_ps(a.lo, a.hi));
    const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q));
    return _mm256_movemask_ps(nan) ? __builtin_nanf("") : top;
}
BB_INLINE I round_to_int(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
BB_INLINE F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
BB_INLINE I zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
BB_INLINE __m256 add_exponent(__m256 a, __m256i n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(n, 23)));
}
BB_INLINE F add_exponent(F a, I n) { return {add_exponent(a.lo, n.lo), add_exponent(a.hi, n.hi)}; }
BB_INLINE F zero_where_less(F value, F x, F limit) {
    return {_mm256_and_ps(value.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ)),
            _mm256_and_ps(value.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ))};
}
BB_INLINE F upper_half_down(F a) { return {a.hi, a.hi}; }
BB_INLINE void store_lower_half(float* p, F a) { _mm256_storeu_ps(p, a.lo); }

BB_INLINE F load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
BB_INLINE F load_int8(const uint8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
}
// 16 pairs of bfloat16: their first or their second halves.
BB_INLINE F load_bf16_even(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)p), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)(p + 16)), 16))};
}
BB_INLINE F load_bf16_odd(const uint16_t* p) {
    const __m256i high = _mm256_set1_epi32(int(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i*)p), high)),
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i*)(p + 16)), high))};
}

BB_INLINE Pairs load_int8_pairs(const uint8_t* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)),
            _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(p + 16)))};
}
BB_INLINE I dot(I sum, Pairs w, const int16_t* x) {
    int pair;
    std::memcpy(&pair, x, 4);
    const __m256i b = _mm256_set1_epi32(pair);
    add_products(sum.lo, w.lo, b);
    add_products(sum.hi, w.hi, b);
    return sum;
}
BB_INLINE void load_nibble_pairs(const uint8_t* p, Pairs (&out)[4]) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)(p + 32));
    const __m256i mask = _mm256_set1_epi16(15);
    out[0] = {_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)};
    out[1] = {_mm256_and_si256(_mm256_srli_epi16(a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(b, 4), mask)};
    out[2] = {_mm256_and_si256(_mm256_srli_epi16(a, 8), mask), _mm256_and_si256(_mm256_srli_epi16(b, 8), mask)};
    out[3] = {_mm256_srli_epi16(a, 12), _mm256_srli_epi16(b, 12)};
}
BB_INLINE void load_nibble_quads(const uint8_t* p, Quads (&out)[2]) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)(p + 32));
    const __m256i mask = _mm256_set1_epi8(15);
    out[0] = {_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)};
    out[1] = {_mm256_and_si256(_mm256_srli_epi16(a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(b, 4), mask)};
}
BB_INLINE QuadSum zero_quads() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
BB_INLINE __m256i spread_quad(const int8_t* x) {
    int quad;
    std::memcpy(&quad, x, 4);
    return _mm256_set1_epi32(quad);
}
BB_INLINE QuadSum dot(Quads w, const int8_t* x) {
    const __m256i b = spread_quad(x);
    return {byte_products(w.lo, b), byte_products(w.hi, b)};
}
BB_INLINE QuadSum dot(QuadSum sum, Quads w, const int8_t* x) {
    const __m256i b = spread_quad(x);
    add_byte_products(sum.lo, w.lo, b);
    add_byte_products(sum.hi, w.hi, b);
    return sum;
}
BB_INLINE I widen(QuadSum s, short factor = 1) {
    const __m256i by = _mm256_set1_epi16(factor);
    return {_mm256_madd_epi16(s.lo, by), _mm256_madd_epi16(s.hi, by)};
}
BB_INLINE I join(QuadSum high, QuadSum low) {
    const I h = widen(high, 256), l = widen(low);
    return {_mm256_add_epi32(h.lo, l.lo), _mm256_add_epi32(h.hi, l.hi)};
}

BB_INLINE __m256i saturate_int16(I a) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8); }
BB_INLINE void store_int16(int16_t* p, I a) { _mm256_storeu_si256((__m256i*)p, saturate_int16(a)); }
// 16 16-bit values as bytes in the order of QUAD_ORDER.
BB_INLINE __m128i to_quads(__m256i v) {
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return _mm_shuffle_epi8(bytes, _mm_load_si128((const __m128i*)QUAD_ORDER));
}
BB_INLINE void store_int8_quads(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, to_quads(saturate_int16(a))); }
BB_INLINE void store_split_quads(int8_t* high_bytes, int8_t* low_bytes, I a) {
    const __m256i v = saturate_int16(a), high = _mm256_srai_epi16(_mm256_add_epi16(v, _mm256_set1_epi16(128)), 8);
    _mm_storeu_si128((__m128i*)high_bytes, to_quads(high));
    _mm_storeu_si128((__m128i*)low_bytes, to_quads(_mm256_sub_epi16(v, _mm256_slli_epi16(high, 8))));
}

// Nothing about x is known to the compiler afterwards.
BB_INLINE void make_opaque(F& x) { asm volatile("" : "+x"(x.lo), "+x"(x.hi)); }
BB_INLINE void make_opaque(Quads& x) { asm volatile("" : "+x"(x.lo), "+x"(x.hi)); }
BB_INLINE void make_opaque(Pairs& x) { asm volatile("" : "+x"(x.lo), "+x"(x.hi)); }

}  // namespace bb

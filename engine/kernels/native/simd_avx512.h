// Primitives for AVX-512, with or without VNNI: one register holds all 16 lanes. Included by simd.h only.
#pragma once

#include "simd_x86.h"

namespace bb {

#ifdef __AMX_INT8__
constexpr const char* ISA_NAME = "amx";
#elif defined(__AVX512VNNI__)
constexpr const char* ISA_NAME = "avx512vnni";
#else
constexpr const char* ISA_NAME = "avx512";
#endif
constexpr int REGISTERS = 32;  // of 16 lanes
constexpr bool BYTES_ARE_FASTER = true;  // than products of 16 bits

struct F { __m512 v; };
struct I { __m512i v; };
struct Pairs { __m512i v; };
struct Quads { __m512i v; };
struct QuadSum { __m512i v; };  // without VNNI 16-bit sums: 15 * 128 * 16 fits

BB_INLINE F zero() { return {_mm512_setzero_ps()}; }
BB_INLINE F set(float x) { return {_mm512_set1_ps(x)}; }
BB_INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
BB_INLINE F load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)}; }
BB_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
BB_INLINE void store_part(float* p, F x, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), x.v); }
BB_INLINE F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
BB_INLINE F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
BB_INLINE F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
BB_INLINE F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
BB_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
BB_INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }  // b where either is NaN
BB_INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
BB_INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
BB_INLINE float sum_lanes(F a) {
    return sum_eight(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
BB_INLINE float max_lanes(F a) {
    const float top = max_eight(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
    return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q) ? __builtin_nanf("") : top;
}
BB_INLINE I round_to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
BB_INLINE F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
BB_INLINE I zero_int() { return {_mm512_setzero_si512()}; }
BB_INLINE F add_exponent(F a, I n) {
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_slli_epi32(n.v, 23)))};
}
BB_INLINE F zero_where_less(F value, F x, F limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), value.v)};
}
BB_INLINE F upper_half_down(F a) { return {_mm512_shuffle_f32x4(a.v, a.v, 0xEE)}; }
BB_INLINE void store_lower_half(float* p, F a) { _mm256_storeu_ps(p, _mm512_castps512_ps256(a.v)); }

BB_INLINE F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
BB_INLINE F load_int8(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
// 16 pairs of bfloat16: their first or their second halves.
BB_INLINE F load_bf16_even(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
BB_INLINE F load_bf16_odd(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xffff0000u))))};
}

BB_INLINE Pairs load_int8_pairs(const uint8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p))};
}
BB_INLINE I dot(I sum, Pairs w, const int16_t* x) {
    int pair;
    std::memcpy(&pair, x, 4);
#ifdef __AVX512VNNI__
    asm("vpdpwssd %2, %1, %0" : "+v"(sum.v) : "v"(w.v), "v"(_mm512_set1_epi32(pair)));
#else
    add_products(sum.v, w.v, _mm512_set1_epi32(pair));
#endif
    return sum;
}
// For a register that is used more than once: the compiler would load it anew for every use.
BB_INLINE __m512i load_once(const uint8_t* p) {
    __m512i v = _mm512_loadu_si512(p);
    asm("" : "+v"(v));
    return v;
}
BB_INLINE void load_nibble_pairs(const uint8_t* p, Pairs (&out)[4]) {
    const __m512i v = load_once(p), mask = _mm512_set1_epi16(15);
    out[0].v = _mm512_and_si512(v, mask);
    out[1].v = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
    out[2].v = _mm512_and_si512(_mm512_srli_epi16(v, 8), mask);
    out[3].v = _mm512_srli_epi16(v, 12);
}
BB_INLINE void load_nibble_quads(const uint8_t* p, Quads (&out)[2]) {
    const __m512i v = load_once(p), mask = _mm512_set1_epi8(15);
    out[0].v = _mm512_and_si512(v, mask);
    out[1].v = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
}
BB_INLINE QuadSum zero_quads() { return {_mm512_setzero_si512()}; }
BB_INLINE __m512i spread_quad(const int8_t* x) {
    int quad;
    std::memcpy(&quad, x, 4);
    return _mm512_set1_epi32(quad);
}
BB_INLINE QuadSum dot(QuadSum sum, Quads w, const int8_t* x) {
#ifdef __AVX512VNNI__
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(w.v), "v"(spread_quad(x)));
#else
    add_byte_products(sum.v, w.v, spread_quad(x));
#endif
    return sum;
}
BB_INLINE QuadSum dot(Quads w, const int8_t* x) {
#ifdef __AVX512VNNI__
    return dot(zero_quads(), w, x);
#else
    return {byte_products(w.v, spread_quad(x))};
#endif
}
#ifdef __AVX512VNNI__
BB_INLINE I widen(QuadSum s) { return {s.v}; }
BB_INLINE I join(QuadSum high, QuadSum low) { return {_mm512_add_epi32(_mm512_slli_epi32(high.v, 8), low.v)}; }
#else
BB_INLINE I widen(QuadSum s, short factor = 1) { return {_mm512_madd_epi16(s.v, _mm512_set1_epi16(factor))}; }
BB_INLINE I join(QuadSum high, QuadSum low) { return {_mm512_add_epi32(widen(high, 256).v, widen(low).v)}; }
#endif

BB_INLINE void store_int16(int16_t* p, I a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi32_epi16(a.v)); }
// 16 values as bytes in the order of QUAD_ORDER.
BB_INLINE __m128i to_quads(__m512i a) {
    return _mm_shuffle_epi8(_mm512_cvtsepi32_epi8(a), _mm_load_si128((const __m128i*)QUAD_ORDER));
}
BB_INLINE void store_int8_quads(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, to_quads(a.v)); }
BB_INLINE void store_split_quads(int8_t* high_bytes, int8_t* low_bytes, I a) {
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i*)high_bytes, to_quads(high));
    _mm_storeu_si128((__m128i*)low_bytes, to_quads(_mm512_sub_epi32(a.v, _mm512_slli_epi32(high, 8))));
}

// Nothing about x is known to the compiler afterwards.
BB_INLINE void make_opaque(F& x) { asm volatile("" : "+v"(x.v)); }
BB_INLINE void make_opaque(Quads& x) { asm volatile("" : "+v"(x.v)); }
BB_INLINE void make_opaque(Pairs& x) { asm volatile("" : "+v"(x.v)); }

}  // namespace bb

// Primitives for any CPU, in the compiler's vectors of four lanes (SSE2, NEON, …). Included by simd.h only.
#pragma once

#include <cmath>

namespace bb {

constexpr const char* ISA_NAME = "portable";
#if defined(__aarch64__)
constexpr int REGISTERS = 8;  // of 16 lanes
#else
constexpr int REGISTERS = 4;
#endif
constexpr bool BYTES_ARE_FASTER = false;  // than products of 16 bits

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

struct F { F4 v[4]; };
struct I { I4 v[4]; };
struct Pairs { I4 even[4], odd[4]; };
struct Quads { I4 v[4][4]; };  // [byte of the quad][channels]
struct QuadSum { I4 v[4]; };

template <class Body>
BB_INLINE F lanes_f(Body&& body) { return {{body(0), body(1), body(2), body(3)}}; }

BB_INLINE F set(float x) { return lanes_f([&](int) { return F4{x, x, x, x}; }); }
BB_INLINE F zero() { return set(0.0f); }
BB_INLINE F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
BB_INLINE F load_part(const float* p, int n) {
    F x = zero();
    std::memcpy(&x, p, size_t(n) * sizeof(float));
    return x;
}
BB_INLINE void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
BB_INLINE void store_part(float* p, F x, int n) { std::memcpy(p, &x, size_t(n) * sizeof(float)); }
BB_INLINE F add(F a, F b) { return lanes_f([&](int i) { return a.v[i] + b.v[i]; }); }
BB_INLINE F sub(F a, F b) { return lanes_f([&](int i) { return a.v[i] - b.v[i]; }); }
BB_INLINE F mul(F a, F b) { return lanes_f([&](int i) { return a.v[i] * b.v[i]; }); }
BB_INLINE F div(F a, F b) { return lanes_f([&](int i) { return a.v[i] / b.v[i]; }); }
BB_INLINE F fma(F a, F b, F c) {
#ifdef __FP_FAST_FMAF
    return lanes_f([&](int i) {
        F4 r;
        for (int j = 0; j < 4; j++) r[j] = __builtin_fmaf(a.v[i][j], b.v[i][j], c.v[i][j]);
        return r;
    });
#else
    return add(mul(a, b), c);
#endif
}
// b where either is NaN
BB_INLINE F max(F a, F b) { return lanes_f([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
BB_INLINE F min(F a, F b) { return lanes_f([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
BB_INLINE F abs(F a) { return lanes_f([&](int i) { return (F4)((I4)a.v[i] & 0x7fffffff); }); }
BB_INLINE I round_to_int(F a) {
    I r;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {  // NaN and what no int32 holds: undefined in C++, so as x86 answers
            const float x = a.v[i][j];
            r.v[i][j] = std::fabs(x) < 2147483648.0f ? int32_t(std::nearbyint(x)) : INT32_MIN;
        }
    return r;
}
BB_INLINE F to_float(I a) { return lanes_f([&](int i) { return __builtin_convertvector(a.v[i], F4); }); }
BB_INLINE I zero_int() { return I{}; }
BB_INLINE F add_exponent(F a, I n) {
    typedef uint32_t U4 __attribute__((vector_size(16)));
    return lanes_f([&](int i) { return (F4)((U4)a.v[i] + ((U4)n.v[i] << 23)); });
}
BB_INLINE F zero_where_less(F value, F x, F limit) {
    return lanes_f([&](int i) { return (F4)((I4)value.v[i] & ~(x.v[i] < limit.v[i])); });
}
BB_INLINE F upper_half_down(F a) { return {{a.v[2], a.v[3], a.v[2], a.v[3]}}; }
BB_INLINE void store_lower_half(float* p, F a) { std::memcpy(p, &a, 8 * sizeof(float)); }

BB_INLINE float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
    uint32_t bits = sign | (exponent + 112) << 23 | mantissa << 13;
    if (exponent == 31) bits = sign | 0x7f800000u | mantissa << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    if (exponent == 0) value = (sign ? -0x1p-24f : 0x1p-24f) * float(mantissa);
    return value;
}
BB_INLINE F load_half(const uint16_t* p) {
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = half_to_float(p[i]);
    return load(lanes);
}
BB_INLINE F load_int8(const uint8_t* p) {
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = float(int8_t(p[i]));
    return load(lanes);
}
// 16 pairs of bfloat16: their first or their second halves.
BB_INLINE I4 load_int4(const void* p, int i) {
    I4 v;
    std::memcpy(&v, static_cast<const char*>(p) + 16 * i, 16);
    return v;
}
BB_INLINE F load_bf16_even(const uint16_t* p) { return lanes_f([&](int i) { return (F4)(load_int4(p, i) << 16); }); }
BB_INLINE F load_bf16_odd(const uint16_t* p) {
    return lanes_f([&](int i) { return (F4)(load_int4(p, i) & int32_t(0xffff0000u)); });
}

BB_INLINE Pairs load_int8_pairs(const uint8_t* p) {
    typedef uint16_t U4 __attribute__((vector_size(8)));
    Pairs w;
    for (int i = 0; i < 4; i++) {
        U4 pairs;
        std::memcpy(&pairs, p + 8 * i, 8);
        const I4 wide = __builtin_convertvector(pairs, I4);
        w.even[i] = wide << 24 >> 24;  // to the top and back: the sign is spread
        w.odd[i] = wide << 16 >> 24;
    }
    return w;
}
BB_INLINE I dot(I sum, Pairs w, const int16_t* x) {
    for (int i = 0; i < 4; i++) sum.v[i] += w.even[i] * int32_t(x[0]) + w.odd[i] * int32_t(x[1]);
    return sum;
}
BB_INLINE void load_nibble_pairs(const uint8_t* p, Pairs (&out)[4]) {
    for (int i = 0; i < 4; i++) {
        const I4 v = load_int4(p, i);
        for (int j = 0; j < 4; j++) {
            out[j].even[i] = v >> (4 * j) & 15;
            out[j].odd[i] = v >> (16 + 4 * j) & 15;
        }
    }
}
BB_INLINE void load_nibble_quads(const uint8_t* p, Quads (&out)[2]) {
    for (int i = 0; i < 4; i++) {
        const I4 v = load_int4(p, i);
        for (int j = 0; j < 4; j++) {
            out[0].v[j][i] = v >> (8 * j) & 15;
            out[1].v[j][i] = v >> (8 * j + 4) & 15;
        }
    }
}
BB_INLINE QuadSum zero_quads() { return QuadSum{}; }
BB_INLINE QuadSum dot(QuadSum sum, Quads w, const int8_t* x) {
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++) sum.v[i] += w.v[j][i] * int32_t(x[j]);
    return sum;
}
BB_INLINE QuadSum dot(Quads w, const int8_t* x) { return dot(zero_quads(), w, x); }
BB_INLINE I widen(QuadSum s) { return {{s.v[0], s.v[1], s.v[2], s.v[3]}}; }

BB_INLINE int32_t clamp_int(int32_t x, int32_t limit) { return x > limit ? limit : x < -limit - 1 ? -limit - 1 : x; }
BB_INLINE void store_int16(int16_t* p, I a) {
    for (int i = 0; i < LANES; i++) p[i] = int16_t(clamp_int(a.v[i / 4][i % 4], 32767));
}
BB_INLINE I join(QuadSum high, QuadSum low) {
    I sum;
    for (int i = 0; i < 4; i++) sum.v[i] = high.v[i] * 256 + low.v[i];
    return sum;
}
BB_INLINE void store_int8_quads(int8_t* p, I a) {
    for (int i = 0; i < LANES; i++) {
        const int from = i / 8 * 8 + QUAD_ORDER[i % 8];
        p[i] = int8_t(clamp_int(a.v[from / 4][from % 4], 127));
    }
}
BB_INLINE void store_split_quads(int8_t* high_bytes, int8_t* low_bytes, I a) {
    for (int i = 0; i < LANES; i++) {
        const int from = i / 8 * 8 + QUAD_ORDER[i % 8], value = clamp_int(a.v[from / 4][from % 4], 32767);
        const int high = std::min((value + 128) >> 8, 127);
        high_bytes[i] = int8_t(high);
        low_bytes[i] = int8_t(clamp_int(value - high * 256, 127));
    }
}

// Nothing about x is known to the compiler afterwards.
template <class T>
BB_INLINE void make_opaque(T& x) {
    asm volatile("" : "+m"(x));
}

BB_INLINE float sum_lanes(F x) {
    float a[LANES];
    store(a, x);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) a[i] += a[i + width];
    return a[0];
}
BB_INLINE float max_lanes(F x) {
    float a[LANES];
    store(a, x);
    float top = a[0];
    for (int i = 1; i < LANES; i++) top = (a[i] > top || a[i] != a[i]) ? a[i] : top;
    return top;
}

}  // namespace bb

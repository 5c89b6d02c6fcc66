// Tile registers (AMX): 16 rows of 64 bytes each, and products of whole tiles. There where BB_TILES is defined, and
// HAS_TILES says the same to `if constexpr`.
//
// C += A B, with A [rows][k] and B [k / 4 or k / 2][16 columns][4 bytes or 2 bfloat16]; C is 16 columns of 32 bits.
// A row of C depends on its row of A alone.
#pragma once

#include "simd.h"

namespace bb {

constexpr int TILE_HEIGHT = 16;

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && !defined(BB_PORTABLE)
#define BB_TILES

constexpr bool HAS_TILES = true;

// Rows and bytes a row of the eight registers.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    constexpr TileShapes& set(int first, int last, int num_rows, int num_bytes) {
        for (int i = first; i <= last; i++) rows[i] = uint8_t(num_rows), row_bytes[i] = uint16_t(num_bytes);
        return *this;
    }
};

// The calling thread's registers get these shapes while it lives. Left as they are, they would be saved with every
// switch of threads.
class Tiles {
public:
    explicit Tiles(const TileShapes& shapes) { shape(shapes); }
    ~Tiles() { release(); }
    Tiles(const Tiles&) = delete;

    static void shape(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
    static void release() { asm volatile("tilerelease" ::: "memory"); }
};

// The compiler's own functions take literals only, and it may move what is stored in memory past their loads.
template <int T>
BB_INLINE void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
BB_INLINE void tile_load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
BB_INLINE void tile_store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
template <int C, int A, int B>
BB_INLINE void tile_dot_signed() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
BB_INLINE void tile_dot_unsigned() {  // A without sign
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
BB_INLINE void tile_dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#else

constexpr bool HAS_TILES = false;

#endif

}  // namespace bb

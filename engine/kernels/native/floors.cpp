// What this machine can do at best, measured with the same team and registers as the kernels: for the benchmark.
#include "floors.h"

#include <chrono>
#include <vector>

#include "simd.h"

namespace bb {
namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int CHAINS = REGISTERS >= 32 ? 12 : REGISTERS >= 8 ? 5 : 2;
constexpr int ROUNDS = 1 << 16;  // short: a run that nobody interrupts is wanted

// Makes x opaque to the compiler: what led to it is computed, what follows is not foreseen.
template <class T>
BB_INLINE void keep(T& x) {
    asm volatile("" : "+m"(x));
}

}  // namespace

double measure_read(Member& member, const float* data, int64_t count) {
    constexpr int64_t CHUNK = 1 << 16;
    const double start = now();
    member.share(int(count / CHUNK), [&](int item) {
        const float* p = data + item * CHUNK;
        F sums[4] = {zero(), zero(), zero(), zero()};
        for (int64_t i = 0; i < CHUNK; i += 4 * LANES)
            each<4>([&](auto j) { sums[j] = add(sums[j], load(p + i + j * LANES)); });
        each<4>([&](auto j) { keep(sums[j]); });
    });
    return double(count / CHUNK * CHUNK * 4) / (now() - start);
}

double measure_fma(Member& member) {
    const double start = now();
    member.share(member.team_size(), [&](int) {
        F sums[CHAINS], a = set(1.0f), b = set(1e-6f);
        keep(a);
        each<CHAINS>([&](auto i) {
            sums[i] = zero();
            keep(sums[i]);
        });
        for (int round = 0; round < ROUNDS; round++) each<CHAINS>([&](auto i) { sums[i] = fma(sums[i], a, b); });
        each<CHAINS>([&](auto i) { keep(sums[i]); });
    });
    return 2.0 * LANES * CHAINS * ROUNDS * member.team_size() / (now() - start);
}

double measure_int16(Member& member) {
    const double start = now();
    member.share(member.team_size(), [&](int) {
        I sums[CHAINS];
        uint8_t bytes[2 * LANES] = {1, 2, 3};
        int16_t x[2] = {3, 5};
        keep(bytes);
        keep(x);
        const Pairs w = load_int8_pairs(bytes);
        each<CHAINS>([&](auto i) {
            sums[i] = zero_int();
            keep(sums[i]);
        });
        for (int round = 0; round < ROUNDS; round++) each<CHAINS>([&](auto i) { sums[i] = dot(sums[i], w, x); });
        each<CHAINS>([&](auto i) { keep(sums[i]); });
    });
    return 4.0 * LANES * CHAINS * ROUNDS * member.team_size() / (now() - start);
}

}  // namespace bb

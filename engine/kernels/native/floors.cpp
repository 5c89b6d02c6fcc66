// What this machine can do at best, measured with the same team and registers as the kernels: for the benchmark.
#include "floors.h"

#include "tiles.h"

namespace bb {
namespace {

// Independent sums: enough to hide the latency, few enough that none leaves its register.
constexpr int FMA_CHAINS = REGISTERS >= 32 ? 12 : REGISTERS >= 8 ? 6 : 2;
constexpr int INTEGER_CHAINS = REGISTERS >= 32 ? 12 : REGISTERS >= 8 ? 4 : 2;
constexpr int ROUNDS = 1 << 17, ITEMS_PER_THREAD = 4;

// Rate of `amount` units of work, shared as `items` over the team.
template <class Body>
double rate(Team& team, double amount, int items, Body&& body) {
    const int64_t start = now_ns();
    team.run([&](Member& member) { member.share(items, body); });
    return amount / (double(now_ns() - start) * 1e-9);
}

// Each round: one multiplication and addition for each chain.
__attribute__((noinline)) void fma_rounds() {
    F sums[FMA_CHAINS], a = set(1.0f);
    const F b = set(1e-6f);
    each<FMA_CHAINS>([&](auto i) { sums[i] = set(float(i)); });
    for (int round = 0; round < ROUNDS; round++) {
        make_opaque(a);
        each<FMA_CHAINS>([&](auto i) { sums[i] = fma(a, b, sums[i]); });
    }
    F total = zero();
    each<FMA_CHAINS>([&](auto i) { total = add(total, sums[i]); });
    make_opaque(total);
}

[[maybe_unused]] __attribute__((noinline)) void int16_rounds(const uint8_t* weights, const int16_t* x) {
    Pairs w = load_int8_pairs(weights);
    I sums[INTEGER_CHAINS];
    each<INTEGER_CHAINS>([&](auto i) { sums[i] = zero_int(); });
    for (int round = 0; round < ROUNDS; round++) {
        make_opaque(w);  // as new as a weight from memory: no product is kept from the round before
        each<INTEGER_CHAINS>([&](auto i) { sums[i] = dot(sums[i], w, x + 2 * i); });  // other rows: none is shared
    }
    F total = zero();
    each<INTEGER_CHAINS>([&](auto i) { total = add(total, to_float(sums[i])); });
    make_opaque(total);
}

[[maybe_unused]] __attribute__((noinline)) void int8_rounds(const uint8_t* weights, const int8_t* x) {
    Quads w[2];
    load_nibble_quads(weights, w);
    QuadSum sums[INTEGER_CHAINS];
    each<INTEGER_CHAINS>([&](auto i) { sums[i] = zero_quads(); });
    for (int round = 0; round < ROUNDS; round++) {
        make_opaque(w[0]);
        each<INTEGER_CHAINS>([&](auto i) { sums[i] = dot(sums[i], w[0], x + 4 * i); });
    }
    F total = zero();
    each<INTEGER_CHAINS>([&](auto i) { total = add(total, to_float(widen(sums[i]))); });
    make_opaque(total);
}

// Rate of rounds that multiply as many activations at once as fit into 32 bits.
template <class X>
double measure_integers(Team& team, void (*rounds)(const uint8_t*, const X*)) {
    constexpr int DEPTH = 4 / sizeof(X);
    const int items = ITEMS_PER_THREAD * team.size();
    return rate(team, 2.0 * DEPTH * LANES * INTEGER_CHAINS * ROUNDS * items, items, [rounds](int) {
        uint8_t weights[DEPTH * LANES];
        X x[DEPTH * INTEGER_CHAINS];
        std::memset(weights, 1, sizeof weights);
        std::memset(x, 1, sizeof x);
        rounds(weights, x);
    });
}

#ifdef BB_TILES
// Rate of products of whole tiles, one for each of the BYTES of an activation.
template <int BYTES>
double measure_tiles(Team& team) {
    constexpr int CHAINS = 4, TILE_ROUNDS = ROUNDS / TILE_HEIGHT, DEPTH = 64;
    const int items = ITEMS_PER_THREAD * team.size();
    return rate(team, 2.0 * TILE_HEIGHT * LANES * DEPTH * CHAINS * TILE_ROUNDS * items, items, [](int) {
        alignas(64) static const uint8_t zeros[TILE_HEIGHT][DEPTH] = {};
        TileShapes shapes;
        const Tiles tiles(shapes.set(0, 7, TILE_HEIGHT, DEPTH));
        each<8>([&](auto i) { tile_load<i>(zeros, DEPTH); });
        for (int round = 0; round < TILE_ROUNDS; round++)
            each<CHAINS>([&](auto i) {
                tile_dot_signed<i, 4, 6>();
                if constexpr (BYTES == 2) tile_dot_unsigned<i, 5, 7>();
            });
    });
}
#endif

}  // namespace

double measure_read(Team& team, const float* data, int64_t count) {
    constexpr int64_t CHUNK = 1 << 16;
    const int64_t chunks = count / CHUNK;
    return rate(team, double(chunks * CHUNK * 4), int(chunks), [&](int item) {
        const float* p = data + item * CHUNK;
        F sums[4] = {zero(), zero(), zero(), zero()};
        for (int64_t i = 0; i < CHUNK; i += 4 * LANES)
            each<4>([&](auto j) { sums[j] = add(sums[j], load(p + i + j * LANES)); });
        F total = zero();
        each<4>([&](auto j) { total = add(total, sums[j]); });
        make_opaque(total);
    });
}

double measure_fma(Team& team) {
    const int items = ITEMS_PER_THREAD * team.size();
    return rate(team, 2.0 * LANES * FMA_CHAINS * ROUNDS * items, items, [](int) { fma_rounds(); });
}

#ifdef BB_TILES
double measure_int16(Team& team) { return measure_tiles<2>(team); }

double measure_int8(Team& team) { return measure_tiles<1>(team); }
#else
double measure_int16(Team& team) { return measure_integers<int16_t>(team, int16_rounds); }

double measure_int8(Team& team) { return measure_integers<int8_t>(team, int8_rounds); }
#endif

}  // namespace bb

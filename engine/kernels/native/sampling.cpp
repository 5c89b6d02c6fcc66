// Choosing a token from a row of logits.
//
// No vocabulary is sorted: what top_k and top_p leave is a run of the likeliest tokens, and it is found among the few
// that lie near the likeliest one. Noise has an upper bound that costs no logarithm, and only tokens that could win by
// it get their exact noise.
#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "simd.h"

namespace bb {
namespace {

constexpr float NONE = -std::numeric_limits<float>::infinity();

// ---- the likeliest ----

float largest(const float* row, int size) {
    F top = set(NONE);
    int i = 0;
    for (; i + LANES <= size; i += LANES) top = max(load(row + i), top);  // max keeps the second where one is NaN
    float best = max_lanes(top);
    for (; i < size; i++) best = row[i] > best ? row[i] : best;
    return best;
}

int argmax(const float* row, int size) {
    const float* at = std::find(row, row + size, largest(row, size));
    return at == row + size ? 0 : int(at - row);
}

// ---- noise: engine/sampling/noise.py, to the bit ----

BB_INLINE uint32_t mix(uint32_t h) {
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

struct Keys {
    uint32_t first, second;
    BB_INLINE uint32_t hash(uint32_t id) const { return mix(mix(id * 0x9E3779B9u + first) ^ second) >> 8; }
};

double gumbel(uint32_t hash) { return -std::log(-std::log((double(hash) + 0.5) * 0x1p-24)); }

// At least the Gumbel value of the hash: -log(-log u) <= -log(1 - u), and the logarithm's integer part is the exponent.
BB_INLINE float gumbel_bound(uint32_t hash) {
    const float rest = float(int32_t((1u << 25) - 2 * hash - 1));  // (1 - u) * 2^25
    const int32_t exponent = (std::bit_cast<int32_t>(rest) >> 23) - 127;
    return float(25 - exponent) * 0.69314724f;
}

// ---- truncation ----

struct Candidate {
    float value;
    int32_t id;
    bool operator<(const Candidate& other) const {  // likelier first, the lower id first among equals
        return value > other.value || (value == other.value && id < other.id);
    }
};

// Tokens up to this one, in the order of candidates, are kept.
using Cut = Candidate;
constexpr Cut ALL = {NONE, std::numeric_limits<int32_t>::max()};

constexpr int CHUNK = 64;  // tokens that a plain loop treats at once: the compiler vectorises those without branches

struct Scratch {
    std::vector<float> scaled;
    std::vector<Candidate> candidates;
};

// e^x for x <= 0 in double, 1e-304 at least; without branches, so that a loop of it is vectorised (std::exp's is not).
BB_INLINE double exp_below_zero(double x) {
    constexpr double LOG2_E = 1.4426950408889634, LN2_HIGH = 0x1.62e42fefa0000p-1, LN2_LOW = 0x1.cf79abc9e3b3ap-40;
    constexpr double SHIFT = 0x1.8p52;  // adding it rounds to an integer, which is then in the lowest bits
    const double bounded = x < -700.0 ? -700.0 : x;
    const double shifted = bounded * LOG2_E + SHIFT, whole = shifted - SHIFT;
    const double r = (bounded - whole * LN2_HIGH) - whole * LN2_LOW;
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const int64_t exponent = std::bit_cast<int64_t>(shifted) << 52;
    return std::bit_cast<double>(std::bit_cast<int64_t>(p) + exponent);
}

// Calls use(id) for tokens with a value of at least `floor`, in the order of their ids. `size` is a multiple of CHUNK.
template <class Use>
BB_INLINE void for_each_from(const float* values, int size, float floor, Use&& use) {
    for (int i = 0; i < size; i += CHUNK) {
        int hits = 0;
        for (int j = 0; j < CHUNK; j++) hits += values[i + j] >= floor;
        if (hits == 0) continue;
        for (int id = i; id < i + CHUNK; id++)
            if (values[id] >= floor && values[id] > NONE) use(id);
    }
}

// Leaves the `count` likeliest of the tokens of at least `floor` in `out`, or all where there are no more; unordered.
// True: there were more.
bool gather_top(const float* values, int size, float top, float floor, int count, std::vector<Candidate>& out) {
    for (float near = 2.0f;; near *= 2.0f) {
        const bool is_complete = near > 64.0f || top - near <= floor;
        out.clear();
        for_each_from(values, size, is_complete ? floor : top - near, [&](int id) { out.push_back({values[id], id}); });
        if (out.size() > size_t(count)) {
            std::nth_element(out.begin(), out.begin() + (count - 1), out.end());
            out.resize(size_t(count));
            return true;
        }
        if (is_complete) return false;
    }
}

// The first of `sorted` at which the sum of weights, `taken` at the start, reaches `wanted`; the last where none does.
Cut reach(const std::vector<Candidate>& sorted, float top, double taken, double wanted) {
    for (const Candidate& one : sorted) {
        taken += exp_below_zero(double(one.value - top));
        if (taken >= wanted) return one;
    }
    return sorted.back();
}

// Weights of tokens by how far they lie below the likeliest one: where a share of them ends is found without sorting.
class Histogram {
public:
    Histogram(const float* values, int size, float top, float floor) {
        for (int i = 0; i < size; i += CHUNK) {
            double weights[CHUNK];
            int32_t buckets[CHUNK];
            for (int j = 0; j < CHUNK; j++) weights[j] = exp_below_zero(double(values[i + j] - top));
            for (int j = 0; j < CHUNK; j++) weights[j] = values[i + j] >= floor ? weights[j] : 0.0;
            for (int j = 0; j < CHUNK; j++) buckets[j] = bucket(values[i + j], top);
            for (int j = 0; j < CHUNK; j++) mass_[buckets[j]] += weights[j];
        }
    }
    double total() const {
        double sum = 0.0;
        for (const double mass : mass_) sum += mass;
        return sum;
    }
    // The bucket in which the sum reaches `wanted`, and the sum before it.
    std::pair<int, double> find(double wanted) const {
        double before = 0.0;
        int at = 0;
        for (; at < BUCKETS - 1 && before + mass_[at] < wanted; at++) before += mass_[at];
        return {at, before};
    }
    static int32_t bucket(float value, float top) {
        const float distance = (top - value) * PER_NAT;
        return int32_t(distance < float(BUCKETS - 1) ? distance : float(BUCKETS - 1));
    }
    // Values of a bucket and of those before it are at least this.
    static float lowest(int bucket, float top) {
        return bucket == BUCKETS - 1 ? NONE : top - float(bucket + 2) / PER_NAT;  // more than rounding could miss
    }

private:
    static constexpr int BUCKETS = 1024;
    static constexpr float PER_NAT = 32.0f;
    double mass_[BUCKETS] = {};
};

struct Truncation {
    int top_k;
    double top_p;
    float floor;  // of min_p
};

Cut cut_of_top_k(const float* values, int size, float top, const Truncation& how, std::vector<Candidate>& candidates) {
    const bool is_cut = gather_top(values, size, top, how.floor, how.top_k, candidates);
    if (how.top_p >= 1.0 && !is_cut) return {how.floor, ALL.id};
    if (how.top_p >= 1.0) return *std::max_element(candidates.begin(), candidates.end());
    std::sort(candidates.begin(), candidates.end());
    double total = 0.0;
    for (const Candidate& one : candidates) total += exp_below_zero(double(one.value - top));
    return reach(candidates, top, 0.0, total * how.top_p);
}

Cut cut_of_top_p(const float* values, int size, float top, const Truncation& how, std::vector<Candidate>& candidates) {
    const Histogram histogram(values, size, top, how.floor);
    const double wanted = histogram.total() * how.top_p;
    const auto [at, before] = histogram.find(wanted);
    candidates.clear();
    for_each_from(values, size, std::max(how.floor, Histogram::lowest(at, top)), [&](int id) {
        if (Histogram::bucket(values[id], top) == at) candidates.push_back({values[id], id});
    });
    std::sort(candidates.begin(), candidates.end());
    return candidates.empty() ? Cut{how.floor, ALL.id} : reach(candidates, top, before, wanted);
}

// The last token that top_k, top_p and min_p leave, in the order of candidates.
Cut find_cut(const float* values, int size, float top, const Truncation& how, std::vector<Candidate>& candidates) {
    if (how.top_k > 0) return cut_of_top_k(values, size, top, how, candidates);
    if (how.top_p < 1.0) return cut_of_top_p(values, size, top, how, candidates);
    return {how.floor, ALL.id};
}

// ---- drawing ----

// The best of value + noise among the tokens up to `cut`. `size` is a multiple of CHUNK.
int draw_one(const float* values, int size, float top, const Cut& cut, const Keys& keys) {
    constexpr float SLACK = 1e-2f;  // more than the bound's rounding
    const auto score = [&](int id) { return double(values[id]) + gumbel(keys.hash(uint32_t(id))); };
    const int first = int(std::find(values, values + size, top) - values);  // is kept; a good bound to begin with
    double best = score(first);
    int best_id = first;
    for (int i = 0; i < size; i += CHUNK) {
        const float needed = float(best - double(top)) - SLACK;
        float bounds[CHUNK];
        int hits = 0;
        for (int j = 0; j < CHUNK; j++) bounds[j] = values[i + j] - top + gumbel_bound(keys.hash(uint32_t(i + j)));
        for (int j = 0; j < CHUNK; j++) hits += bounds[j] >= needed;
        for (int j = 0; hits > 0 && j < CHUNK; j++) {
            const Candidate one{values[i + j], i + j};
            if (bounds[j] < needed || cut < one || one.value == NONE) continue;
            const double found = score(one.id);
            if (found > best || (found == best && one.id < best_id)) best = found, best_id = one.id;
        }
    }
    return best_id;
}

int draw(const float* logits, int vocab, const Draws& draws, int row, Scratch& scratch) {
    const float temperature = draws.temperature[row];
    if (temperature == 0.0f) return argmax(logits, vocab);
    const int size = (vocab + CHUNK - 1) / CHUNK * CHUNK;
    scratch.scaled.resize(size_t(size));
    float* scaled = scratch.scaled.data();
    for (int i = 0; i < vocab; i++) {
        const float value = logits[i] / temperature;
        scaled[i] = value >= NONE ? value : NONE;  // a NaN is not
    }
    std::fill(scaled + vocab, scaled + size, NONE);
    const float top = largest(scaled, size);
    // An overflow in half precision costs this request its sense, not the engine its life.
    if (!std::isfinite(top)) return argmax(logits, vocab);
    const Truncation how{draws.top_k[row], double(draws.top_p[row]), top + draws.log_min_p[row]};
    const Cut cut = find_cut(scaled, size, top, how, scratch.candidates);
    return draw_one(scaled, size, top, cut, {uint32_t(draws.keys[2 * row]), uint32_t(draws.keys[2 * row + 1])});
}

}  // namespace

void draw_rows(Member& member, const float* logits, int rows, int vocab, const Draws& draws, int64_t* out) {
    static thread_local Scratch scratch;
    member.share(rows, [&](int row) { out[row] = draw(logits + int64_t(row) * vocab, vocab, draws, row, scratch); });
}

void penalise_rows(float* logits, int rows, int vocab, const Seen& seen) {
    for (int row = 0; row < rows; row++)
        for (int i = seen.starts[row]; i < seen.starts[row + 1]; i++) {
            float& logit = logits[int64_t(row) * vocab + seen.ids[i]];
            logit = logit > 0.0f ? logit / seen.repetition[row] : logit * seen.repetition[row];
            const float cost = float(seen.counts[i]) * seen.frequency[row] + seen.presence[row];
            if (seen.counts[i] > 0) logit -= cost;
        }
}

}  // namespace bb

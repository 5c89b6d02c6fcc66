// A team of threads that shares streams of work items; every kernel is a function called by all members.
//
// `Team::run(region)` calls `region(Member&)` on the calling thread and on every helper that wakes up in time; inside,
// `member.share(items, body)` runs body(i) for each i once, spread over the members, and returns when all are done.
// Each member has a stretch of items of its own, the same every time, so that it reads on where it read before; who is
// done with it takes from the ends of the others'. Nothing waits for a thread that holds no item: a helper that is
// asleep or descheduled joins late or not at all.
// Helpers spin shortly for the next item or region and then sleep in the kernel, because on a small machine the other
// processes need the core.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace bb {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

void futex_sleep(std::atomic<uint32_t>& word, uint32_t expected);
void futex_wake_all(std::atomic<uint32_t>& word);

// A word that threads wait on: spin for a while, then sleep until somebody calls `notify`.
class Signal {
public:
    uint32_t value() const { return word_.load(std::memory_order_acquire); }
    void advance() {
        word_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(word_);
    }
    void set(uint32_t value) { word_.store(value, std::memory_order_seq_cst); }
    void wait_while(uint32_t value, int64_t spin_ns);

private:
    alignas(64) std::atomic<uint32_t> word_{0};
    alignas(64) std::atomic<uint32_t> sleepers_{0};
};

class Team;

// One thread's view of a region. Members run the same calls of `share` in the same order.
class Member {
public:
    Member(Team& team, int index) : team_(team), index_(index) {}
    int index() const { return index_; }
    int team_size() const;
    // The first of the items that are this member's own.
    int first_of(int items) const { return int(int64_t(items) * index_ / team_size()); }

    template <class Body>
    void share(int items, Body&& body) {
        share(items, body, [] { return false; });
    }
    // Calls `idle` again and again while nothing is left to take and others are still at theirs, until it says false.
    template <class Body, class Idle>
    void share(int items, Body&& body, Idle&& idle);

private:
    template <class Body>
    uint32_t work(uint32_t phase, int items, Body&& body);

    Team& team_;
    const int index_;
    uint32_t phase_ = 0;
};

class Team {
public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    int size() const { return int(helpers_.size()) + 1; }

    template <class Region>
    void run(Region&& region) {
        if (helpers_.empty()) {
            Member caller(*this, 0);
            return region(caller);
        }
        using Called = std::remove_reference_t<Region>;
        open([](void* context, Member& member) { (*static_cast<Called*>(context))(member); }, &region);
        Member caller(*this, 0);
        region(caller);
        close();
    }

private:
    friend class Member;
    using Entry = void (*)(void*, Member&);
    static constexpr uint32_t OPEN = 1u << 31;
    static constexpr int64_t PHASE_SPIN_NS = 50'000, REGION_SPIN_NS = 50'000;

    void open(Entry entry, void* context);
    void close();
    void help(int index);
    bool join();

    struct Range { int begin, end; };

    // What is left of one member's items in a phase: phase + 1, then begin and end. Set by whoever takes the first of
    // them; until then it holds an earlier phase.
    struct alignas(64) Stretch {
        std::atomic<uint64_t> word{0};
    };
    static constexpr int ITEM_BITS = 22;
    static constexpr uint64_t MOST_ITEMS = (uint64_t(1) << ITEM_BITS) - 1;

    // Takes some of `owner`'s items in `phase`, the owner from the front, others from the back; none: nothing is left,
    // or the phase is over.
    Range take(int owner, bool is_owner, uint32_t phase, int items) {
        std::atomic<uint64_t>& word = stretches_[size_t(owner)].word;
        uint64_t seen = word.load(std::memory_order_acquire);
        for (;;) {
            const uint64_t tag = seen >> (2 * ITEM_BITS);
            if (tag > uint64_t(phase) + 1) return {0, 0};
            Range left{int(seen >> ITEM_BITS & MOST_ITEMS), int(seen & MOST_ITEMS)};
            if (tag != uint64_t(phase) + 1)
                left = {int(int64_t(items) * owner / size()), int(int64_t(items) * (owner + 1) / size())};
            const int count = left.end - left.begin;
            if (count <= 0) return {0, 0};
            const int taken = std::max(1, is_owner ? count / 4 : count / 2);
            const Range mine = is_owner ? Range{left.begin, left.begin + taken} : Range{left.end - taken, left.end};
            (is_owner ? left.begin : left.end) += is_owner ? taken : -taken;
            const uint64_t next = (uint64_t(phase) + 1) << (2 * ITEM_BITS) | uint64_t(left.begin) << ITEM_BITS |
                                  uint64_t(left.end);
            if (word.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) return mine;
        }
    }
    void finish(uint32_t items, uint32_t count) {
        if (done_.fetch_add(count, std::memory_order_acq_rel) + count < items) return;
        done_.store(0, std::memory_order_relaxed);
        finished_.advance();
    }

    std::vector<Stretch> stretches_;               // one for each member
    alignas(64) std::atomic<uint32_t> done_{0};    // items finished in this phase
    Signal finished_;                              // phases finished in this region
    Signal regions_;                               // regions opened so far
    alignas(64) std::atomic<uint32_t> inside_{0};  // OPEN bit and number of helpers inside the region
    std::atomic<bool> stopping_{false};
    Entry entry_ = nullptr;
    void* context_ = nullptr;
    std::vector<std::thread> helpers_;
};

inline int Member::team_size() const { return team_.size(); }

template <class Body>
uint32_t Member::work(uint32_t phase, int items, Body&& body) {
    uint32_t done = 0;
    const int size = team_.size();
    for (int i = 0; i < size; i++) {  // its own first
        const int owner = (index_ + i) % size;
        for (Team::Range range; (range = team_.take(owner, i == 0, phase, items)).begin < range.end;) {
            for (int item = range.begin; item < range.end; item++) body(item);
            done += uint32_t(range.end - range.begin);
        }
    }
    return done;
}

template <class Body, class Idle>
void Member::share(int items, Body&& body, Idle&& idle) {
    if (items <= 0) return;
    if (team_.helpers_.empty()) {
        for (int i = 0; i < items; i++) body(i);
        return;
    }
    const uint32_t phase = phase_++;
    if (const uint32_t done = work(phase, items, body)) team_.finish(uint32_t(items), done);
    while (team_.finished_.value() == phase)
        if (!idle()) team_.finished_.wait_while(phase, Team::PHASE_SPIN_NS);
}

// The process's team, made at first use and again after a fork or a change of size. Hold the lock while running on it.
class SharedTeam {
public:
    static std::unique_lock<std::mutex> lock();
    static Team& get();
    static void resize(int threads);  // 0: one thread a core that this process may use
    static int size();
};

}  // namespace bb

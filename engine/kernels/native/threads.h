// A team of threads that shares streams of work items; every kernel is a function called by all members.
//
// `Team::run(region)` calls `region(Member&)` on the calling thread and on every helper that wakes up in time; inside,
// `member.share(items, body)` runs body(i) for each i once, spread over the members, and returns when all are done.
// Nothing waits for a thread that holds no item: a helper that is asleep or descheduled joins late or not at all.
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

    template <class Body>
    void share(int items, Body&& body);

private:
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

    struct Range { uint32_t begin, end; };

    // Takes the next items of `phase`: many at first, one at a time at the end; none: nothing is left, or the phase is
    // over.
    Range take(uint32_t phase, uint32_t items) {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        for (;;) {
            const uint32_t next = uint32_t(ticket);
            if (uint32_t(ticket >> 32) != phase || next >= items) return {0, 0};
            const uint32_t count = std::max(1u, (items - next) / (2 * uint32_t(size())));
            if (ticket_.compare_exchange_weak(ticket, ticket + count, std::memory_order_acq_rel))
                return {next, next + count};
        }
    }
    void finish(uint32_t phase, uint32_t items, uint32_t count) {
        if (done_.fetch_add(count, std::memory_order_acq_rel) + count < items) return;
        done_.store(0, std::memory_order_relaxed);
        ticket_.store(uint64_t(phase + 1) << 32, std::memory_order_release);
        finished_.advance();
    }

    alignas(64) std::atomic<uint64_t> ticket_{0};  // phase in the upper, next item in the lower half
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
void Member::share(int items, Body&& body) {
    if (items <= 0) return;
    if (team_.helpers_.empty()) {
        for (int i = 0; i < items; i++) body(i);
        return;
    }
    const uint32_t phase = phase_++;
    uint32_t done = 0;
    for (Team::Range range; (range = team_.take(phase, uint32_t(items))).begin < range.end;) {
        for (uint32_t item = range.begin; item < range.end; item++) body(int(item));
        done += range.end - range.begin;
    }
    if (done) team_.finish(phase, uint32_t(items), done);
    while (team_.finished_.value() == phase) team_.finished_.wait_while(phase, Team::PHASE_SPIN_NS);
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

#include "threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace bb {

void futex_sleep(std::atomic<uint32_t>& word, uint32_t expected) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Signal::wait_while(uint32_t value, int64_t spin_ns) {
    const int64_t limit = now_ns() + spin_ns;
    do {
        for (int i = 0; i < 32; i++) {
            if (this->value() != value) return;
            relax();
        }
    } while (now_ns() < limit);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == value) futex_sleep(word_, value);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

Team::Team(int threads) : stretches_(size_t(std::max(threads, 1))) {
    for (int index = 1; index < threads; index++) helpers_.emplace_back([this, index] { help(index); });
}

Team::~Team() {
    stopping_ = true;
    regions_.advance();
    for (std::thread& helper : helpers_) helper.join();
}

void Team::open(Entry entry, void* context) {
    entry_ = entry;
    context_ = context;
    for (Stretch& stretch : stretches_) stretch.word.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    finished_.set(0);
    inside_.store(OPEN, std::memory_order_release);
    regions_.advance();
}

void Team::close() {
    inside_.fetch_and(~OPEN, std::memory_order_acq_rel);
    for (int spins = 0; inside_.load(std::memory_order_acquire) != 0; spins++) {
        if (spins < 1000) relax();
        else sched_yield();
    }
}

bool Team::join() {
    uint32_t state = inside_.load(std::memory_order_acquire);
    while (state & OPEN)
        if (inside_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
    return false;
}

void Team::help(int index) {
    uint32_t seen = 0;
    while (!stopping_) {
        regions_.wait_while(seen, REGION_SPIN_NS);
        seen = regions_.value();
        if (stopping_ || !join()) continue;
        Member member(*this, index);
        entry_(context_, member);
        inside_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

namespace {

int usable_cores() {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

std::mutex team_mutex;
Team* shared_team = nullptr;  // never destroyed at exit: in a forked child its threads would be waited for in vain
pid_t team_owner = 0;
int wanted_size = 0;

}  // namespace

std::unique_lock<std::mutex> SharedTeam::lock() { return std::unique_lock(team_mutex); }

int SharedTeam::size() { return wanted_size > 0 ? wanted_size : usable_cores(); }

void SharedTeam::resize(int threads) {
    wanted_size = threads;
    if (shared_team && team_owner == getpid() && shared_team->size() != size()) {
        delete shared_team;
        shared_team = nullptr;
    }
}

Team& SharedTeam::get() {
    if (!shared_team || team_owner != getpid()) {  // after a fork its threads stayed in the parent
        shared_team = new Team(size());
        team_owner = getpid();
    }
    return *shared_team;
}

}  // namespace bb

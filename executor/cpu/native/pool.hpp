// Threads that help, and are never waited for unless they hold a piece of work.
//
// An OpenMP region ends when every thread of the team has come to its barrier: where a neighbour has
// taken one core for a moment, each of some two hundred regions a step waits for it.  Here the caller
// works through the pieces itself; helpers take what they can get, and the region ends when the
// pieces are done, whoever did them.  A helper that has nothing to do spins a little, then sleeps, so
// that between steps its core is free for others.
#pragma once

#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockgate {

class Pool {
  public:
    static Pool& shared() {
        static Pool* pool = new Pool;  // never destroyed: helpers may outlive static destruction
        return *pool;
    }

    // `threads` in all, the caller's included.  Only ever grows.
    void grow(int threads) {
        try {
            while ((int)helpers_.size() + 1 < threads) {
                helpers_.emplace_back([this] { help(); });
                helpers_.back().detach();
            }
        } catch (const std::system_error&) {  // the system gives no more: fewer do the same work
        }
    }

    // The caller's included.
    int threads() const { return (int)helpers_.size() + 1; }

    // body(piece) for each of 0 … pieces, in any order, on any thread.  Not for two callers at once.
    template <class Body>
    void run(long pieces, const Body& body) {
        if (helpers_.empty() || pieces <= 1) {
            for (long piece = 0; piece < pieces; ++piece) body(piece);
            return;
        }
        call_.store([](const void* with, long piece) { (*(const Body*)with)(piece); },
                    std::memory_order_relaxed);
        with_.store(&body, std::memory_order_relaxed);
        pieces_.store(pieces, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        const uint64_t round = (uint32_t)((next_.load(std::memory_order_relaxed) >> 32) + 1);
        next_.store(round << 32 | (uint64_t)pieces, std::memory_order_seq_cst);
        if (sleeping_.load(std::memory_order_seq_cst) > 0) wake();
        take(round);
        for (int turn = 0; done_.load(std::memory_order_acquire) < pieces; ++turn)
            turn < kSpins ? _mm_pause() : std::this_thread::yield();
    }

  private:
    using Call = void (*)(const void*, long);
    static constexpr int kSpins = 2000;       // some 50 µs: a piece is shorter, unless preempted
    static constexpr int kIdleSpins = 8000;   // some 200 µs: the next region of a step is nearer

    // Take pieces of `round` until none is left.  That none is left, too, must be read from `next_`:
    // who comes late to a round that is done may find the next one's `pieces_` and `call_`.  A piece
    // is claimed by moving `next_` within its own round, so what was read of the work before is still
    // that round's: the caller writes the next only when every piece of this one is done.
    void take(uint64_t round) {
        uint64_t next = next_.load(std::memory_order_acquire);
        while (next >> 32 == round) {
            const long left = (long)(next & 0xffffffff);
            if (left == 0) return;
            const long piece = pieces_.load(std::memory_order_relaxed) - left;
            const Call call = call_.load(std::memory_order_relaxed);
            const void* with = with_.load(std::memory_order_relaxed);
            if (!next_.compare_exchange_weak(next, next - 1, std::memory_order_acq_rel)) continue;
            call(with, piece);
            done_.fetch_add(1, std::memory_order_release);
            next = next_.load(std::memory_order_acquire);
        }
    }

    void help() {
        uint64_t seen = 0;
        for (;;) {
            int turn = 0;
            uint64_t round;
            while ((round = next_.load(std::memory_order_acquire) >> 32) == seen) {
                if (++turn < kIdleSpins) {
                    _mm_pause();
                    continue;
                }
                sleeping_.fetch_add(1, std::memory_order_seq_cst);
                const int32_t alarm = alarm_.load(std::memory_order_seq_cst);
                if (next_.load(std::memory_order_seq_cst) >> 32 == seen)
                    syscall(SYS_futex, &alarm_, FUTEX_WAIT_PRIVATE, alarm, nullptr, nullptr, 0);
                sleeping_.fetch_sub(1, std::memory_order_seq_cst);
                turn = 0;
            }
            seen = round;
            take(round);
        }
    }

    void wake() {
        alarm_.fetch_add(1, std::memory_order_seq_cst);
        syscall(SYS_futex, &alarm_, FUTEX_WAKE_PRIVATE, 1 << 20, nullptr, nullptr, 0);
    }

    alignas(64) std::atomic<uint64_t> next_{0};  // round, then how many pieces are left
    alignas(64) std::atomic<long> done_{0};
    alignas(64) std::atomic<Call> call_{nullptr};
    std::atomic<const void*> with_{nullptr};
    std::atomic<long> pieces_{0};
    alignas(64) std::atomic<int32_t> alarm_{0};
    std::atomic<int> sleeping_{0};
    std::vector<std::thread> helpers_;
};

template <class Body>
inline void in_parallel(long pieces, const Body& body) {
    Pool::shared().run(pieces, body);
}

}  // namespace lockgate

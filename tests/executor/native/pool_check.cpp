// The pool alone: every piece of every region runs exactly once.  Arguments: threads, regions.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <vector>

#define private public
#include "pool.hpp"
#undef private

using namespace lockgate;

namespace {

constexpr int kMost = 64;

// A helper that comes to a region that is done must claim nothing, though the caller has begun to
// write the next one; nor may a round's number outgrow its bits.
bool late_helper_does_nothing() {
    Pool pool;
    pool.helpers_.resize(1);  // as if there were one: nobody else touches this pool
    int ran = 0;
    const auto body = [&](long) { ++ran; };
    for (uint64_t round : {uint64_t(0), uint64_t(0xfffffffd)}) {
        pool.next_.store(round << 32);
        for (int region = 0; region < 5; ++region) {
            ran = 0;
            pool.run(4, body);
            if (ran != 4) return false;
            const uint64_t done = pool.next_.load() >> 32;
            pool.pieces_.store(40);
            pool.take(done);
            if (ran != 4 || pool.next_.load() >> 32 != done) return false;
        }
    }
    return true;
}

}  // namespace

int main(int, char** arguments) {
    if (!late_helper_does_nothing()) return std::puts("a late helper ran a piece"), 1;
    Pool& pool = Pool::shared();
    pool.grow(std::atoi(arguments[1]));
    pool.grow(1);  // never shrinks
    std::vector<std::atomic<int>> hits(kMost);
    uint32_t seed = 1;
    for (long region = 0, regions = std::atol(arguments[2]); region < regions; ++region) {
        seed = seed * 1664525u + 1013904223u;
        const long pieces = (seed >> 16) % 41;
        const int pauses = (seed >> 8) % 30;
        for (auto& hit : hits) hit.store(0, std::memory_order_relaxed);
        std::vector<long> squares(kMost);  // plain memory: a race would show to the sanitizer
        if (region % 1000 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));  // let all sleep
        in_parallel(pieces, [&](long piece) {
            hits[piece].fetch_add(1, std::memory_order_relaxed);
            squares[piece] = piece * piece;
            for (int i = 0; i < pauses; ++i) _mm_pause();
        });
        for (long piece = 0; piece < kMost; ++piece) {
            const bool real = piece < pieces;
            if (hits[piece].load(std::memory_order_relaxed) != real || squares[piece] != (real ? piece * piece : 0))
                return std::printf("region %ld: piece %ld of %ld ran %d times\n", region, piece, pieces,
                                   hits[piece].load()),
                       1;
        }
    }
    return 0;
}

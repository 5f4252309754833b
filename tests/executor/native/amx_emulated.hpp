// The matrix tiles in plain C++, for processors without: what the manual says of LDTILECFG, TILELOADD,
// TILEZERO, TDPBF16PS and TILESTORED, with every bound checked.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

struct Tile {
    uint8_t data[16][64];
};

struct State {
    bool configured = false;
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
    Tile tiles[8];
};

inline State& state() {
    static thread_local State mine;
    return mine;
}

inline void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "tiles misused: %s\n", what);
    std::abort();
}

inline void check_tile(int tile) {
    const State& now = state();
    check(now.configured, "not configured");
    check(tile >= 0 && tile < 8 && now.rows[tile] >= 1 && now.rows[tile] <= 16, "rows");
    check(now.bytes[tile] >= 4 && now.bytes[tile] <= 64 && now.bytes[tile] % 4 == 0, "bytes");
}

inline void configure(const void* from) {
    State& now = state();
    const uint8_t* at = (const uint8_t*)from;
    now.palette = at[0], now.start = at[1];
    check(now.palette == 1, "palette");
    for (int i = 2; i < 16; ++i) check(at[i] == 0, "reserved");
    std::memcpy(now.bytes, at + 16, 32);
    std::memcpy(now.rows, at + 48, 16);
    std::memset(now.tiles, 0, sizeof now.tiles);
    now.configured = true;
}

inline void release() { state().configured = false; }

inline void zero(int tile) {
    check_tile(tile);
    std::memset(&state().tiles[tile], 0, sizeof(Tile));
}

inline void load(int tile, const void* from, long stride) {
    check_tile(tile);
    std::memset(&state().tiles[tile], 0, sizeof(Tile));
    for (int row = 0; row < state().rows[tile]; ++row)
        std::memcpy(state().tiles[tile].data[row], (const uint8_t*)from + row * stride,
                    state().bytes[tile]);
}

inline void save(int tile, void* to, long stride) {
    check_tile(tile);
    for (int row = 0; row < state().rows[tile]; ++row)
        std::memcpy((uint8_t*)to + row * stride, state().tiles[tile].data[row], state().bytes[tile]);
}

inline float wide(const uint8_t* at) {
    uint32_t bits = (uint32_t)(at[0] | at[1] << 8) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

inline void multiply(int sums, int left, int right) {
    check_tile(sums), check_tile(left), check_tile(right);
    State& now = state();
    check(now.rows[sums] == now.rows[left], "rows of sums and left");
    check(now.bytes[sums] == now.bytes[right], "columns of sums and right");
    check(now.bytes[left] / 4 == now.rows[right], "depth");
    for (int m = 0; m < now.rows[sums]; ++m)
        for (int k = 0; k < now.bytes[left] / 4; ++k)
            for (int n = 0; n < now.bytes[sums] / 4; ++n) {
                float sum;
                uint8_t* at = now.tiles[sums].data[m] + 4 * n;
                std::memcpy(&sum, at, 4);
                const uint8_t *a = now.tiles[left].data[m] + 4 * k, *b = now.tiles[right].data[k] + 4 * n;
                sum += wide(a) * wide(b);
                sum += wide(a + 2) * wide(b + 2);
                std::memcpy(at, &sum, 4);
            }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) emulated::configure(from)
#define _tile_release() emulated::release()
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::save(tile, to, stride)
#define _tile_dpbf16ps(sums, left, right) emulated::multiply(sums, left, right)

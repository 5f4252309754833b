// y = x·Wᵀ over the bf16 strips of linear.cpp, by the matrix tiles of Sapphire Rapids and later.
//
// A strip's 16 pairs of k by 16 columns are a tile as they lie.  Two tiles of rows and two of columns
// give four of sums, so each load serves twice.  Sums run over k 32 at a time: another order than the
// vectors', which is why `fast` alone may switch here, and only where a product was compared with the
// vectors' at load (linear.py).  Source: Intel 64 and IA-32 manual, volume 2, TDPBF16PS, LDTILECFG.
#include "pool.hpp"
#include "strips.hpp"
#include "vector.hpp"

#ifdef LOCKGATE_AMX_EMULATED  // the tests', for processors without
#include "amx_emulated.hpp"
#else
#pragma GCC target("amx-tile,amx-bf16")
#endif

using namespace lockgate;

namespace {

constexpr long kTile = 16;   // rows of a tile, and float32 columns
constexpr long kDepth = 32;  // of k

// Tiles 0–3 sums (rows first, columns second), 4–5 rows of x, 6–7 columns of a strip.
struct alignas(64) Tiles {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};

    Tiles(long upper, long lower) {
        const uint8_t a = (uint8_t)upper, b = (uint8_t)(lower ? lower : 1);
        rows[0] = rows[1] = rows[4] = a;
        rows[2] = rows[3] = rows[5] = b;
        rows[6] = rows[7] = kTile;
    }
};

// Up to 32 rows against one strip.
void block(const bf16* x, long k, const bf16* strip, long rows, float* sums) {
    const long upper = rows < kTile ? rows : kTile, lower = rows - upper;
    const Tiles tiles(upper, lower);
    asm volatile("" : : "r"(&tiles) : "memory");  // all of it is written before the next line reads
    _tile_loadconfig(&tiles);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long at = 0; at < k; at += kDepth) {
        const bf16* columns = strip + at * kColumns;
        _tile_loadd(4, x + at, 2 * k);
        _tile_loadd(6, columns, 4 * kColumns);
        _tile_loadd(7, columns + kColumns, 4 * kColumns);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (lower) {
            _tile_loadd(5, x + kTile * k + at, 2 * k);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 4 * kColumns);
    _tile_stored(1, sums + kTile, 4 * kColumns);
    if (lower) {
        _tile_stored(2, sums + kTile * kColumns, 4 * kColumns);
        _tile_stored(3, sums + kTile * kColumns + kTile, 4 * kColumns);
    }
}

}  // namespace

extern "C" {

// Whether the system lets this process use the tiles.  Before any thread of the pool does.
int lockgate_amx_allowed() {
#ifdef LOCKGATE_AMX_EMULATED
    return 1;
#else
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#endif
}

// As lockgate_linear_bf16; k a multiple of 32.
void lockgate_linear_amx(const bf16* x, long m, long k, long n, const bf16* packed, const float* bias,
                         void* out, int wide) {
    if (m == 0) return;
    const Out to{out, n, wide != 0, bias};
    const long strips = strips_of(n);
    const long each = rows_at_once(m, k), parts = (m + each - 1) / each;
    in_parallel(parts * strips, [&](long piece) {
        const long row = piece / strips * each, strip = piece % strips;
        const long end = row + each < m ? row + each : m;
        alignas(64) float sums[2 * kTile * kColumns];
        for (long at = row; at < end; at += 2 * kTile) {
            const long rows = end - at < 2 * kTile ? end - at : 2 * kTile;
            block(x + at * k, k, packed + strip * k * kColumns, rows, sums);
            for (long r = 0; r < rows; ++r)
                to.store(at + r, strip * kColumns, _mm512_load_ps(sums + r * kColumns),
                         _mm512_load_ps(sums + r * kColumns + kTile));
        }
        _tile_release();
    });
}
}

// All kernels in odd shapes, every array exactly as large as its description says, for sanitizers
// to watch.  Results are compared between one thread and several: they must be the same bits.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "attention.cpp"
#include "linear.cpp"
#include "stream.cpp"
#include "rounded.cpp"  // last: it raises what may be compiled

namespace {

#ifdef __SANITIZE_THREAD__
constexpr bool kFew = true;  // races do not need every shape, and watching them takes its time
#else
constexpr bool kFew = false;
#endif

uint32_t seed = 1;

uint32_t chance() { return (seed = seed * 1664525u + 1013904223u) >> 8; }

template <class T>
using Numbers = std::vector<T>;

Numbers<bf16> halves(long count) {
    Numbers<bf16> made(count);
    for (bf16& each : made) each = bf16(0x3f00 + chance() % 128 + (chance() % 2 << 15));  // ±0.5 … 1
    return made;
}

Numbers<float> floats(long count) {
    Numbers<float> made(count);
    for (float& each : made) each = float(chance() % 1000) / 500 - 1;
    return made;
}

// Packed nibbles begin at a cache line, as the engine lays them, and end where the memory ends.
struct Lines {
    explicit Lines(long bytes) : line((uint8_t*)std::aligned_alloc(64, bytes)) {}
    ~Lines() { std::free(line); }
    uint8_t* line;
};

uint64_t digest(const void* data, size_t bytes) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ ((const uint8_t*)data)[i]) * 1099511628211u;
    return hash;
}

template <class T>
uint64_t digest(const Numbers<T>& of) {
    return digest(of.data(), of.size() * sizeof(T));
}

uint64_t linears() {
    uint64_t all = 0;
    for (long n : {1, 31, 32, 33, 95})
        for (long k : {2, 32, 96, 16416})
            for (long m : {0, 1, 2, 5, 12, 13, 29}) {
                if (k > 1000 && n > 33 || kFew && (k > 1000 || n < 95)) continue;
                const auto weight = halves(n * k), x = halves(m * k);
                const auto bias = floats(n);
                // exact ends: the strips are the whole of their array
                Numbers<bf16> packed(lockgate_packed_bytes_bf16(n, k) / 2);
                lockgate_pack_bf16(weight.data(), n, k, packed.data());
                Numbers<bf16> out(m * n);
                Numbers<float> wide(m * n);
                lockgate_linear_bf16(x.data(), m, k, n, packed.data(), bias.data(), out.data(), 0);
                lockgate_linear_bf16(x.data(), m, k, n, packed.data(), nullptr, wide.data(), 1);
                all ^= digest(out) + digest(wide);
                if (k % 32) continue;
                for (long each : {18, 20, 34}) {  // bytes a block: 4 bits, with an offset, 8 bits
                    const long count = n * (k / 32);
                    Numbers<uint8_t> blocks(count * each);
                    for (uint8_t& byte : blocks) byte = uint8_t(chance());
                    for (long b = 0; b < count; ++b) {  // finite scales
                        blocks[b * each + 1] &= 0x3b;
                        if (each == 20) blocks[b * each + 3] &= 0x3b;
                    }
                    Numbers<float> sums(m * (k / 32));
                    if (each == 34) {
                        Lines packed8(lockgate_packed_bytes_int8(n, k));
                        lockgate_pack_int8(blocks.data(), n, k, packed8.line);
                        lockgate_linear_int8(x.data(), m, k, n, packed8.line, bias.data(), out.data(), 0);
                        lockgate_linear_int8(x.data(), m, k, n, packed8.line, nullptr, wide.data(), 1);
                    } else {
                        Lines nibbles(lockgate_packed_bytes_int4(n, k));
                        lockgate_pack_int4(blocks.data(), n, k, each == 20, nibbles.line);
                        lockgate_linear_int4(x.data(), m, k, n, nibbles.line, bias.data(), out.data(), 0, sums.data());
                        lockgate_linear_int4(x.data(), m, k, n, nibbles.line, nullptr, wide.data(), 1, sums.data());
                    }
                    all ^= digest(out) + 3 * digest(wide);
                }
            }
    return all;
}

uint64_t rounded() {
    uint64_t all = 0;
    if (!__builtin_cpu_supports("avx512vnni")) return all;
    for (long n : {1, 31, 32, 33, 95})
        for (long k : {32, 96, 16416})
            for (long m : {0, 1, 2, 7, 8, 9, 29}) {
                if (k > 1000 && n > 33 || kFew && (k > 1000 || n < 95)) continue;
                const auto weight = halves(n * k), x = halves(m * k);
                const auto bias = floats(n);
                Numbers<bf16> out(m * n);
                Numbers<float> wide(m * n);
                Numbers<uint8_t> work(lockgate_rounded_bytes(m, k));
                Lines columns(lockgate_packed_bytes_column(n, k)), nibbles(lockgate_packed_bytes_nibbles(n, k));
                lockgate_pack_column(weight.data(), n, k, columns.line);
                lockgate_linear_column(x.data(), m, k, n, columns.line, bias.data(), out.data(), 0, work.data());
                lockgate_linear_column(x.data(), m, k, n, columns.line, nullptr, wide.data(), 1, work.data());
                all ^= digest(out) + 3 * digest(wide);
                for (long each : {18, 20}) {
                    Numbers<uint8_t> blocks(n * (k / 32) * each);
                    for (uint8_t& byte : blocks) byte = uint8_t(chance());
                    for (long b = 0; b < n * (k / 32); ++b) {  // finite scales
                        blocks[b * each + 1] &= 0x3b;
                        if (each == 20) blocks[b * each + 3] &= 0x3b;
                    }
                    lockgate_pack_nibbles(blocks.data(), n, k, each == 20, nibbles.line);
                    lockgate_linear_nibbles(x.data(), m, k, n, nibbles.line, bias.data(), out.data(), 0, work.data());
                    lockgate_linear_nibbles(x.data(), m, k, n, nibbles.line, nullptr, wide.data(), 1, work.data());
                    all ^= digest(out) + 5 * digest(wide);
                }
            }
    return all;
}

uint64_t streams() {
    uint64_t all = 0;
    for (long n : {16, 48, 8208})
        for (long rows : {0, 1, 37}) {
            if (n > 1000 && rows > 1) continue;
            auto x = floats(rows * n);
            const auto delta = halves(rows * n), both = halves(rows * 2 * n);
            const auto after = floats(n), weight = floats(n);
            Numbers<bf16> out(rows * n);
            lockgate_add_norm(x.data(), nullptr, nullptr, weight.data(), out.data(), rows, n, 1e-5f);
            lockgate_add_norm(x.data(), delta.data(), nullptr, weight.data(), out.data(), rows, n, 1e-5f);
            lockgate_add_norm(x.data(), delta.data(), after.data(), weight.data(), out.data(), rows, n, 1e-5f);
            all ^= digest(out) + digest(x);
            for (int gelu : {0, 1}) lockgate_gate(both.data(), out.data(), rows, n, gelu), all += digest(out);
        }
    return all;
}

struct Row {
    long start, count;
};

// Tasks as `plan.make_tasks` makes them.
uint64_t attention(long heads, long kv_heads, long d, long window, const Numbers<Row>& rows, bool rope, bool norms) {
    const long group = heads / kv_heads, most = 48 / group > 0 ? 48 / group : 1;
    long tokens = 0, width = 0, blocks = 0, context = 0;
    for (const Row& row : rows) {
        tokens += row.count;
        const long used = (row.start + row.count + 31) / 32;
        width = used > width ? used : width, blocks += used;
        context = row.start + row.count > context ? row.start + row.count : context;
    }
    Numbers<int32_t> table(rows.size() * width), places, positions;
    Numbers<lockgate_task> tasks;
    Numbers<int32_t> merges;
    int32_t next = 0, first = 0, parts = 0;
    for (size_t at = 0; at < rows.size(); ++at) {
        const Row& row = rows[at];
        for (long used = 0; used < (row.start + row.count + 31) / 32; ++used)
            table[at * width + used] = int32_t(blocks - 1) - next++;
        for (long p = row.start; p < row.start + row.count; ++p)
            places.push_back(int32_t(table[at * width + p / 32] * 32 + p % 32)), positions.push_back(int32_t(p));
        for (long offset = 0; offset < row.count; offset += most) {
            const long count = row.count - offset < most ? row.count - offset : most, position = row.start + offset;
            const long low = window && position - window + 1 > 0 ? (position - window + 1) / 512 : 0;
            const long spans = (position + count - 1) / 512 + 1 - low;
            if (count == 1 && spans > 1) {
                merges.push_back(int32_t(tasks.size()));
                for (long span = 0; span < spans; ++span)
                    tasks.push_back({first, 1, int32_t(position), int32_t(at), int32_t(low + span), int32_t(spans),
                                     parts++, 0});
            } else {
                tasks.push_back({first, int32_t(count), int32_t(position), int32_t(at), int32_t(low), int32_t(spans),
                                 -1, 0});
            }
            first += int32_t(count);
        }
    }
    const auto qkv = halves(tokens * (heads + 2 * kv_heads) * d);
    auto memory = halves(blocks * 2 * kv_heads * 32 * d);
    const auto cosine = floats(context * d / 2), sine = floats(context * d / 2), norm = floats(d);
    Numbers<bf16> mixed(tokens * heads * d);
    Numbers<float> work(parts * heads * lockgate_part_floats(d));
    lockgate_attend(qkv.data(), mixed.data(), memory.data(), tokens, places.data(),
                    positions.data(), rope ? cosine.data() : nullptr,
                    rope ? sine.data() : nullptr, table.data(), width, tasks.data(), long(tasks.size()),
                    merges.data(), long(merges.size()), work.data(), heads, kv_heads, d, 0.2f, window,
                    norms ? norm.data() : nullptr, norms ? norm.data() : nullptr, 1e-5f);
    return digest(mixed) ^ digest(memory);
}

uint64_t attentions() {
    uint64_t all = 0;
    const Numbers<Row> rows{{0, 1}, {31, 1}, {127, 1}, {600, 1}, {1100, 1}, {0, 5}, {500, 30}, {33, 1}};
    for (long d : {32, 96, 256})
        for (long group : {1, 3, 48})
            for (long window : {0, 1, 33, 600}) {
                if (kFew && d + group != 35 && d + group != 97) continue;
                all += attention(2 * group, 2, d, window, rows, window != 33, group == 3) * (all | 1);
            }
    return all;
}

}  // namespace

// Argument: threads.
int main(int, char** arguments) {
    uint64_t found[2][4];
    for (int many = 0; many < 2; ++many) {
        if (many) lockgate_threads(std::atoi(arguments[1]));
        seed = 1;
        found[many][0] = linears(), found[many][1] = streams(), found[many][2] = attentions();
        found[many][3] = rounded();
    }
    if (std::memcmp(found[0], found[1], sizeof found[0])) return std::puts("threads change bits"), 1;
    return 0;
}

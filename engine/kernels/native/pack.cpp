// Packing of weights into blocks of 16 output channels, and rows back out of them (embedding look-up).
#include <algorithm>
#include <cmath>

#include "threads.h"
#include "weights.h"

namespace bb {
namespace {

float from_half(uint16_t half) {
    const uint16_t copies[LANES] = {half};
    float lanes[LANES];
    store(lanes, load_half(copies));
    return lanes[0];
}

// Round to nearest even; what is too large becomes infinity.
uint16_t to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (magnitude < 0x38800000) {  // subnormal: in units of 2^-24
        float absolute;
        std::memcpy(&absolute, &magnitude, 4);
        return uint16_t(sign | uint32_t(std::nearbyint(absolute * 0x1p24f)));
    }
    return uint16_t(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

struct GroupCodes {
    int8_t codes[GROUP];
    uint16_t scale, minimum;
};

void put_float_group(const float (&values)[GROUP], int lane, int format, uint8_t* out) {
    for (int k = 0; k < GROUP; k++) {
        if (format == BB_FLOAT32) reinterpret_cast<float*>(out)[k * LANES + lane] = values[k];
        else if (format == BB_FLOAT16) reinterpret_cast<uint16_t*>(out)[k * LANES + lane] = to_half(values[k]);
        else reinterpret_cast<uint16_t*>(out)[k / 2 * 2 * LANES + lane * 2 + k % 2] = to_bf16(values[k]);
    }
}

// Byte and shift of the nibble that holds input channel k of a lane.
struct Nibble { int byte, shift; };
Nibble nibble_of(int k, int lane) {
    const int index = k % 8 / 2 + k % 2 * 4;
    return {k / 8 * (4 * LANES) + lane * 4 + index / 2, index % 2 * 4};
}

void put_codes(const GroupCodes& group, int lane, int format, uint8_t* out) {
    uint16_t* tail = reinterpret_cast<uint16_t*>(out + (format == BB_INT8 ? GROUP * LANES : GROUP * LANES / 2));
    tail[lane] = group.scale;
    if (format == BB_INT8) {
        for (int k = 0; k < GROUP; k++) out[k / 2 * 2 * LANES + lane * 2 + k % 2] = uint8_t(group.codes[k]);
        return;
    }
    tail[LANES + lane] = group.minimum;
    for (int k = 0; k < GROUP; k++) {
        const Nibble at = nibble_of(k, lane);
        out[at.byte] = uint8_t(out[at.byte] | (group.codes[k] & 15) << at.shift);
    }
}

GroupCodes quantize(const float (&values)[GROUP], int format) {
    GroupCodes group{};
    const auto [low, high] = std::minmax_element(values, values + GROUP);
    const bool is_int8 = format == BB_INT8;
    const float range = is_int8 ? std::max(*high, -*low) / 127.0f : (*high - *low) / 15.0f;
    group.scale = to_half(range);
    group.minimum = is_int8 ? 0 : to_half(*low);
    const float scale = from_half(group.scale), minimum = from_half(group.minimum);
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int k = 0; k < GROUP; k++) {
        const float code = std::nearbyint((values[k] - minimum) * inverse);
        group.codes[k] = int8_t(std::clamp(code, is_int8 ? -127.0f : 0.0f, is_int8 ? 127.0f : 15.0f));
    }
    return group;
}

float read_source(const void* source, int type, int64_t index) {
    if (type == SOURCE_FLOAT32) return static_cast<const float*>(source)[index];
    const uint16_t bits = static_cast<const uint16_t*>(source)[index];
    return type == SOURCE_BFLOAT16 ? from_bf16(bits) : from_half(bits);
}

// Calls put(row, group, lane, bytes of the group) for every group of every real row; padding stays zero.
template <class Put>
void for_each_group(Member& member, const BBWeight& shape, void* out, Put&& put) {
    const int groups = num_groups(shape);
    member.share(num_blocks(shape), [&](int block) {
        uint8_t* bytes = static_cast<uint8_t*>(out) + block * block_bytes(shape);
        std::memset(bytes, 0, size_t(block_bytes(shape)));
        for (int lane = 0; lane < LANES; lane++) {
            const int row = row_of_lane(shape, block, lane);
            for (int g = 0; row >= 0 && g < groups; g++)
                put(row, g, lane, bytes + int64_t(g) * group_bytes(shape.format));
        }
    });
}

}  // namespace

void pack_floats(Member& member, const void* source, int source_type, int64_t row_stride, const BBWeight& shape,
                 void* out) {
    for_each_group(member, shape, out, [&](int row, int g, int lane, uint8_t* bytes) {
        float values[GROUP] = {};
        const int count = std::min(GROUP, shape.k - g * GROUP);
        for (int k = 0; k < count; k++) values[k] = read_source(source, source_type, row * row_stride + g * GROUP + k);
        if (shape.format <= BB_FLOAT16) put_float_group(values, lane, shape.format, bytes);
        else put_codes(quantize(values, shape.format), lane, shape.format, bytes);
    });
}

void pack_codes(Member& member, const int8_t* codes, const uint16_t* scales, const uint16_t* minima,
                const BBWeight& shape, void* out) {
    const int groups = num_groups(shape);
    for_each_group(member, shape, out, [&](int row, int g, int lane, uint8_t* bytes) {
        GroupCodes group;
        const int64_t index = int64_t(row) * groups + g;
        std::memcpy(group.codes, codes + index * GROUP, GROUP);
        group.scale = scales[index];
        group.minimum = minima ? minima[index] : 0;
        put_codes(group, lane, shape.format, bytes);
    });
}

void unpack_row(const BBWeight& w, int row, float* out) {
    int channel = row, lane_offset = 0, per_block = LANES;
    if (w.gate_up) {
        per_block = LANES / 2;
        lane_offset = row < w.n / 2 ? 0 : per_block;
        channel = row % (w.n / 2);
    }
    const int lane = channel % per_block + lane_offset;
    const uint8_t* block = block_data(w, channel / per_block);
    for (int k = 0; k < w.k; k++) {
        const uint8_t* group = block + int64_t(k / GROUP) * group_bytes(w.format);
        const int i = k % GROUP, pair = i / 2 * 2 * LANES + lane * 2 + i % 2;
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(group);
        switch (w.format) {
            case BB_FLOAT32: out[k] = reinterpret_cast<const float*>(group)[i * LANES + lane]; break;
            case BB_FLOAT16: out[k] = from_half(halves[i * LANES + lane]); break;
            case BB_BFLOAT16: out[k] = from_bf16(halves[pair]); break;
            case BB_INT8: out[k] = float(int8_t(group[pair])) * from_half(halves[GROUP * LANES / 2 + lane]); break;
            default: {
                const Nibble at = nibble_of(i, lane);
                const uint16_t* tail = halves + GROUP * LANES / 4;
                out[k] = float(group[at.byte] >> at.shift & 15) * from_half(tail[lane]) + from_half(tail[LANES + lane]);
            }
        }
    }
}

}  // namespace bb

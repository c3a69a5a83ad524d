// y[i] = CAST of x[i] from X_TYPE to Y_TYPE (docs/kernel-interface.md).

override WORKGROUP: u32 = 64;
override X_TYPE: u32;
override Y_TYPE: u32;

struct Params { count: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

// Rounds to the nearest even integer and saturates to Y_TYPE. NaN becomes 0. The built-in
// conversion is not used: it saturates short of the limits.
fn to_integer(v: f32) -> i32 {
    let bits = bitcast<u32>(v);
    let magnitude = bits & 0x7fffffffu;
    let top = lane_mask(Y_TYPE) >> 1u;
    let negative = bits >> 31u;
    if (magnitude > 0x7f800000u) { return 0; }
    var whole = 0x80000000u;
    if (magnitude < 0x4b000000u) {
        // Below 2^23 there is a fraction to round.
        whole = nearest_shift(significand(magnitude), min(150u - (magnitude >> 23u), 25u));
    } else if (magnitude < 0x4f000000u) {
        whole = significand(magnitude) << ((magnitude >> 23u) - 150u);
    }
    let bounded = min(whole, top + negative);
    return bitcast<i32>(select(bounded, 0u - bounded, negative == 1u));
}

// The float nearest to an integer. Bits that do not fit are rounded to even for FP32, and for a
// narrower result kept as one sticky bit, so that only the last rounding counts.
fn from_integer(v: i32) -> f32 {
    let sign = bitcast<u32>(v) & 0x80000000u;
    var magnitude = bitcast<u32>(v);
    if (sign != 0u) { magnitude = 0u - magnitude; }
    if (magnitude < 0x01000000u) { return bitcast<f32>(bitcast<u32>(f32(magnitude)) | sign); }
    let excess = 8u - countLeadingZeros(magnitude);
    let below = (1u << excess) - 1u;
    var kept = magnitude >> excess;
    if (Y_TYPE == FP32) {
        kept = (magnitude + (below >> 1u) + (kept & 1u)) >> excess;
    } else if ((magnitude & below) != 0u) {
        kept |= 1u;
    }
    return bitcast<f32>(sign | ((149u + excess) << 23u) + kept);
}

fn convert(lane: u32) -> u32 {
    if (is_float(X_TYPE)) {
        if (X_TYPE == Y_TYPE) { return lane; }
        let v = widen(X_TYPE, lane);
        if (is_float(Y_TYPE)) { return narrow(Y_TYPE, v); }
        if (Y_TYPE == BOOL) { return min(bitcast<u32>(v) & 0x7fffffffu, 1u); }
        return narrow_int(Y_TYPE, to_integer(v));
    }
    let v = widen_int(X_TYPE, lane);
    if (is_float(Y_TYPE)) { return narrow(Y_TYPE, from_integer(v)); }
    return narrow_int(Y_TYPE, v);
}

fn lane_of(element: u32) -> u32 {
    return convert(lane_bits(x[element / lanes_of(X_TYPE)], X_TYPE, element));
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * WORKGROUP + local;
    store_word(i, Y_TYPE);
}

// y[i] = OP(x[i]): the elementwise operators of one operand (docs/kernel-interface.md).

override WORKGROUP: u32 = 64;
override OP: u32;
override TYPE: u32;
override MODE: u32;

struct Params { count: u32, lo: u32, hi: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

// A key that sorts like the float (both zeros equal); a float comparison may flush subnormals.
fn sort_key(v: f32) -> i32 {
    let bits = bitcast<u32>(v);
    let magnitude = bitcast<i32>(bits & 0x7fffffffu);
    return select(magnitude, -magnitude, bits > 0x7fffffffu);
}

fn clamp_float(v: f32) -> f32 {
    let low = bitcast<f32>(params.lo);
    let high = bitcast<f32>(params.hi);
    if (is_nan(v)) {
        // IGNORE (2) takes the number of max(NaN, low).
        if (MODE == 2u) { return low; }
        return nan_value();
    }
    if (sort_key(v) < sort_key(low)) { return low; }
    if (sort_key(v) > sort_key(high)) { return high; }
    return v;
}

fn apply_float(v: f32) -> f32 {
    switch (OP) {
        case 11u: { return clamp_float(v); }
        case 12u: { return strict_erf(v); }
        case 13u: { return strict_sigmoid(v); }
        case 14u: { return strict_tanh(v); }
        case 34u: { return strict_ceil(v); }
        case 36u: { return strict_cos(v); }
        case 37u: { return strict_exp(v); }
        case 38u: { return strict_floor(v); }
        case 39u: { return strict_log(v); }
        case 42u: { return strict_reciprocal(v); }
        case 43u: { return strict_rsqrt(v); }
        case 44u: { return strict_sin(v); }
        default: { return nan_value(); }
    }
}

fn negate_int(v: i32) -> i32 {
    if (TYPE == INT32) { return select(0 - v, 2147483647, bitcast<u32>(v) == 0x80000000u); }
    let difference = bitcast<i32>(params.hi) - (v - bitcast<i32>(params.lo));
    let top = bitcast<i32>(lane_mask(TYPE) >> 1u);
    return min(max(difference, -1 - top), top);
}

fn apply_int(v: i32) -> i32 {
    switch (OP) {
        case 11u: { return min(max(v, bitcast<i32>(params.lo)), bitcast<i32>(params.hi)); }
        case 32u: { return select(v, 0 - v, v < 0); }
        case 33u: { return ~v; }
        case 35u: { return countLeadingZeros(v); }
        case 40u: { return v ^ 1; }
        case 41u: { return negate_int(v); }
        default: { return 0; }
    }
}

fn apply(lane: u32) -> u32 {
    if (!is_float(TYPE)) { return narrow_int(TYPE, apply_int(widen_int(TYPE, lane))); }
    // ABS and NEGATE touch the sign bit only.
    let mask = lane_mask(TYPE);
    if (OP == 32u) { return lane & (mask >> 1u); }
    if (OP == 41u) { return lane ^ (mask - (mask >> 1u)); }
    return narrow(TYPE, apply_float(widen(TYPE, lane)));
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = (group.y * groups.x + group.x) * WORKGROUP + local;
    let lanes = lanes_of(TYPE);
    if (at >= params.count / lanes + min(params.count % lanes, 1u)) { return; }
    let source = x[at];
    var word = 0u;
    var foreign = 0u;
    for (var k = 0u; k < lanes; k++) {
        if (at * lanes + k < params.count) {
            word |= place(TYPE, apply(lane_bits(source, TYPE, k)), k);
        } else {
            foreign |= place(TYPE, lane_mask(TYPE), k);
        }
    }
    if (foreign != 0u) { word |= y[at] & foreign; }
    y[at] = word;
}

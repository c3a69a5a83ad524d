// Folds the middle dimension of (outer, axis, inner), from the front (docs/kernel-interface.md): its
// part [first, last), after what y has if first is not 0.

override WORKGROUP: u32 = 64;
override OP: u32;
override TYPE: u32;
override Y_TYPE: u32;
override MODE: u32;

struct Params { count: u32, axis: u32, inner: u32, first: u32, last: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

const ARGMAX: u32 = 1u;
const REDUCE_ALL: u32 = 49u;
const REDUCE_ANY: u32 = 50u;
const REDUCE_MAX: u32 = 51u;
const REDUCE_MIN: u32 = 52u;
const REDUCE_SUM: u32 = 54u;

fn fetch(at: u32) -> u32 { return lane_bits(x[at / lanes_of(TYPE)], TYPE, at); }

fn so_far(index: u32) -> u32 { return lane_bits(y[index / lanes_of(Y_TYPE)], Y_TYPE, index); }

fn rounded(v: f32) -> f32 { return bitcast<f32>(bitcast<u32>(v) ^ params.zero); }

// Unsigned key that sorts like the value: floats by their bits, both zeros alike, NaNs on top.
const NAN_KEY: u32 = 0xffffffffu;

fn float_key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) { return NAN_KEY; }
    if (bits >> 31u == 1u) { return 0x80000000u - magnitude; }
    return 0x80000000u + magnitude;
}

fn key_of(lane: u32) -> u32 {
    if (is_float(TYPE)) { return float_key(bitcast<u32>(widen(TYPE, lane))); }
    return bitcast<u32>(widen_int(TYPE, lane)) ^ 0x80000000u;
}

fn is_nan_key(key: u32) -> bool { return is_float(TYPE) && key == NAN_KEY; }

fn nan_lane() -> u32 { return narrow(TYPE, bitcast<f32>(0x7fc00000u | params.zero)); }

// The index of the largest key; NaN is the largest of all, or passed over.
fn largest_index(base: u32, element: u32) -> u32 {
    var index = params.axis;
    var top = 0u;
    if (params.first > 0u) {
        // An index of 0 may also stand for nothing but NaNs.
        let before = so_far(element);
        let key = key_of(fetch(base + before * params.inner));
        if (MODE != 2u || !is_nan_key(key)) {
            index = before;
            top = key;
        }
    }
    for (var k = params.first; k < params.last; k++) {
        let key = key_of(fetch(base + k * params.inner));
        if (MODE == 2u && is_nan_key(key)) { continue; }
        if (index == params.axis || key > top) {
            index = k;
            top = key;
        }
    }
    return select(index, 0u, index == params.axis);
}

// MAX keeps the first of equal values, MIN the last: that matters for the sign of a zero. NaNs
// that are passed over leave NaN only where there is nothing else.
fn extreme(base: u32, element: u32) -> u32 {
    var lane = 0u;
    var key = 0u;
    var numbers = 0u;
    if (params.first > 0u) {
        lane = so_far(element);
        key = key_of(lane);
        if (!is_nan_key(key)) {
            numbers = 1u;
        } else if (MODE == 1u) {
            return lane;
        }
    }
    for (var k = params.first; k < params.last; k++) {
        let next = fetch(base + k * params.inner);
        let next_key = key_of(next);
        if (is_nan_key(next_key)) {
            if (MODE == 1u) { return nan_lane(); }
            continue;
        }
        let above = OP == REDUCE_MAX && next_key > key;
        let not_above = OP == REDUCE_MIN && next_key <= key;
        if (numbers == 0u || above || not_above) {
            lane = next;
            key = next_key;
        }
        numbers++;
    }
    if (numbers == 0u) { return nan_lane(); }
    return lane;
}

fn accumulate(base: u32, element: u32) -> u32 {
    if (!is_float(TYPE)) {
        var sum = 0i;
        if (params.first > 0u) { sum = bitcast<i32>(so_far(element)); }
        for (var k = params.first; k < params.last; k++) {
            sum += bitcast<i32>(fetch(base + k * params.inner));
        }
        return bitcast<u32>(sum);
    }
    var acc = rounded(select(1.0, 0.0, OP == REDUCE_SUM));
    if (params.first > 0u) { acc = widen(TYPE, so_far(element)); }
    for (var k = params.first; k < params.last; k++) {
        let v = widen(TYPE, fetch(base + k * params.inner));
        if (OP == REDUCE_SUM) { acc = rounded(acc + v); } else { acc = rounded(acc * v); }
    }
    if ((bitcast<u32>(acc) & 0x7fffffffu) > 0x7f800000u) { return nan_lane(); }
    return narrow(TYPE, acc);
}

// Of the part, where what is in y counts as an element of it.
fn count_true(base: u32, element: u32) -> u32 {
    var found = 0u;
    if (params.first > 0u) { found = so_far(element); }
    for (var k = params.first; k < params.last; k++) {
        found += min(fetch(base + k * params.inner), 1u);
    }
    return found;
}

fn lane_of(index: u32) -> u32 {
    let base = index / params.inner * params.axis * params.inner + index % params.inner;
    switch (OP) {
        case ARGMAX: { return largest_index(base, index); }
        case REDUCE_ALL: {
            let all = params.last - params.first + min(params.first, 1u);
            return select(0u, 1u, count_true(base, index) == all);
        }
        case REDUCE_ANY: { return select(0u, 1u, count_true(base, index) > 0u); }
        case REDUCE_MAX, REDUCE_MIN: { return extreme(base, index); }
        default: { return accumulate(base, index); }
    }
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

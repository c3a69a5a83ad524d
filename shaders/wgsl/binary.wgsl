// y = OP(a, b), elementwise with broadcasting by strides (docs/kernel-interface.md).

override WORKGROUP: u32 = 64;
override OP: u32;
override TYPE: u32;
override Y_TYPE: u32;
override BROADCAST: u32;
override MODE: u32;

struct Params {
    count: u32,
    d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32,
    a0: u32, a1: u32, a2: u32, a3: u32, a4: u32, a5: u32,
    b0: u32, b1: u32, b2: u32, b3: u32, b4: u32, b5: u32,
    shift: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> a: array<u32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

// A key that sorts like the float (both zeros equal); a float comparison may flush subnormals.
fn sort_key(v: f32) -> i32 {
    let bits = bitcast<u32>(v);
    let magnitude = bitcast<i32>(bits & 0x7fffffffu);
    return select(magnitude, -magnitude, bits > 0x7fffffffu);
}

fn comparison(p: i32, q: i32) -> bool {
    switch (OP) {
        case 46u: { return p == q; }
        case 47u: { return p > q; }
        default: { return p >= q; }
    }
}

fn is_comparison() -> bool { return OP >= 46u && OP <= 48u; }

fn pick(p: f32, q: f32) -> f32 {
    let nan_p = is_nan(p);
    let nan_q = is_nan(q);
    if (nan_p || nan_q) {
        if (MODE != 2u) { return nan_value(); }
        if (nan_p) { return q; }
        return p;
    }
    // Equal operands, the two zeros among them, give the first.
    let worse = select(sort_key(p) > sort_key(q), sort_key(p) < sort_key(q), OP == 26u);
    if (worse) { return q; }
    return p;
}

fn float_result(p: f32, q: f32) -> f32 {
    switch (OP) {
        case 15u: { return r_add(p, q); }
        case 30u: { return r_sub(p, q); }
        case 28u: { return r_mul(p, q); }
        case 29u: { return strict_pow(p, q); }
        default: { return pick(p, q); }
    }
}

// The low word of the 64-bit product p * q, rounded and shifted right by params.shift.
fn shifted_mul(p: i32, q: i32) -> i32 {
    let pu = bitcast<u32>(p);
    let qu = bitcast<u32>(q);
    var low = pu * qu;
    if (params.shift == 0u) { return bitcast<i32>(low); }
    // Signed high word from the unsigned one.
    var high = product_high(pu, qu) - select(0u, qu, p < 0) - select(0u, pu, q < 0);
    let position = min(params.shift, 63u) - 1u;
    let bit = 1u << (position & 31u);
    if (position < 32u) {
        low += bit;
        high += select(0u, 1u, low < bit);
    } else {
        high += bit;
    }
    // Two steps, one bit and then `position` bits, so that no shift is by a whole word.
    let half_low = (low >> 1u) | (high << 31u);
    let half_high = bitcast<i32>(high) >> 1u;
    if (position >= 32u) { return half_high >> (position - 32u); }
    if (position == 0u) { return bitcast<i32>(half_low); }
    return bitcast<i32>((half_low >> position) | (bitcast<u32>(half_high) << (32u - position)));
}

// Division by zero is 0 and INT_MIN / -1 wraps; TOSA leaves both open.
fn divide_int(p: i32, q: i32) -> i32 {
    let p_abs = select(bitcast<u32>(p), 0u - bitcast<u32>(p), p < 0);
    let q_abs = select(bitcast<u32>(q), 0u - bitcast<u32>(q), q < 0);
    if (q_abs == 0u) { return 0; }
    let ratio = p_abs / q_abs;
    return bitcast<i32>(select(ratio, 0u - ratio, (p < 0) != (q < 0)));
}

fn shift_down(p: i32, amount: u32) -> i32 {
    let by = min(amount, 31u);
    if (MODE != 1u || by == 0u) { return p >> by; }
    let before = p >> (by - 1u);
    return (before >> 1u) + (before & 1);
}

fn int_result(p: i32, q: i32, p_lane: u32) -> i32 {
    let by = bitcast<u32>(q) & 31u;
    switch (OP) {
        case 15u: { return p + q; }
        case 16u: { return shift_down(p, bitcast<u32>(q)); }
        case 17u, 21u: { return p & q; }
        case 18u, 24u: { return p | q; }
        case 19u, 25u: { return p ^ q; }
        case 20u: { return divide_int(p, q); }
        case 22u: { return bitcast<i32>(p_lane << by); }
        case 23u: { return bitcast<i32>(p_lane >> by); }
        case 26u: { return max(p, q); }
        case 27u: { return min(p, q); }
        case 28u: {
            if (TYPE == INT32) { return shifted_mul(p, q); }
            return p * q;
        }
        case 30u: { return p - q; }
        default: { return 0; }
    }
}

fn combine(a_lane: u32, b_lane: u32) -> u32 {
    if (is_float(TYPE)) {
        let p = widen(TYPE, a_lane);
        let q = widen(TYPE, b_lane);
        if (!is_comparison()) { return narrow(Y_TYPE, float_result(p, q)); }
        if (is_nan(p) || is_nan(q)) { return 0u; }
        return select(0u, 1u, comparison(sort_key(p), sort_key(q)));
    }
    let p = widen_int(TYPE, a_lane);
    let q = widen_int(TYPE, b_lane);
    if (is_comparison()) { return select(0u, 1u, comparison(p, q)); }
    return narrow_int(Y_TYPE, int_result(p, q, a_lane));
}

// Which elements of a (x) and b (y) belong to an element of the result.
fn operand_elements(element: u32) -> vec2<u32> {
    if (BROADCAST == 0u) { return vec2<u32>(element, element); }
    if (BROADCAST == 1u) { return element * vec2<u32>(params.a5, params.b5); }
    var rest = element / params.d5;
    var at = (element % params.d5) * vec2<u32>(params.a5, params.b5);
    if (BROADCAST > 2u) {
        at += (rest % params.d4) * vec2<u32>(params.a4, params.b4);
        rest /= params.d4;
    } else { return at + rest * vec2<u32>(params.a4, params.b4); }
    if (BROADCAST > 3u) {
        at += (rest % params.d3) * vec2<u32>(params.a3, params.b3);
        rest /= params.d3;
    } else { return at + rest * vec2<u32>(params.a3, params.b3); }
    if (BROADCAST > 4u) {
        at += (rest % params.d2) * vec2<u32>(params.a2, params.b2);
        rest /= params.d2;
    } else { return at + rest * vec2<u32>(params.a2, params.b2); }
    if (BROADCAST > 5u) {
        at += (rest % params.d1) * vec2<u32>(params.a1, params.b1);
        rest /= params.d1;
        return at + rest * vec2<u32>(params.a0, params.b0);
    }
    return at + rest * vec2<u32>(params.a1, params.b1);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = (group.y * groups.x + group.x) * WORKGROUP + local;
    let lanes = lanes_of(Y_TYPE);
    if (at >= params.count / lanes + min(params.count % lanes, 1u)) { return; }
    let stored = lanes_of(TYPE);
    // Packed operands of the same width: one word of each makes one word of y.
    let aligned = BROADCAST == 0u && stored == lanes && lanes > 1u;
    var left = 0u;
    var right = 0u;
    if (aligned) {
        left = a[at];
        right = b[at];
    }
    var word = 0u;
    var foreign = 0u;
    for (var k = 0u; k < lanes; k++) {
        let element = at * lanes + k;
        if (element < params.count) {
            let from_element = operand_elements(element);
            if (!aligned) {
                left = a[from_element.x / stored];
                right = b[from_element.y / stored];
            }
            let a_lane = lane_bits(left, TYPE, from_element.x);
            let b_lane = lane_bits(right, TYPE, from_element.y);
            word |= place(Y_TYPE, combine(a_lane, b_lane), k);
        } else {
            foreign |= place(Y_TYPE, lane_mask(Y_TYPE), k);
        }
    }
    if (foreign != 0u) { word |= y[at] & foreign; }
    y[at] = word;
}

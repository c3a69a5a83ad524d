// A strided copy of raw lanes into a contiguous y (docs/kernel-interface.md). Elements of 64 bits
// are copied as two words, an invocation each.

override WORKGROUP: u32 = 64;
override TYPE: u32;

struct Params {
    count: u32,
    d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32,
    s0: u32, s1: u32, s2: u32, s3: u32, s4: u32, s5: u32,
    offset: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

// Index in x of element `e` of y: the coordinates are digits of e, the innermost first.
fn walk(e: u32) -> u32 {
    let e4 = e / params.d5;
    var at = params.offset + (e % params.d5) * params.s5;
    if (e4 > 0u) {
        let e3 = e4 / params.d4;
        at += (e4 % params.d4) * params.s4;
        if (e3 > 0u) {
            let e2 = e3 / params.d3;
            at += (e3 % params.d3) * params.s3;
            let e1 = e2 / params.d2;
            at += (e2 % params.d2) * params.s2;
            at += (e1 % params.d1) * params.s1 + (e1 / params.d1) * params.s0;
        }
    }
    return at;
}

fn fetch(at: u32) -> u32 {
    let lane = lane_bits(x[at / lanes_of(TYPE)], TYPE, at);
    if (TYPE == BOOL && lane > 0u) { return 1u; }
    return lane;
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = (group.y * groups.x + group.x) * WORKGROUP + local;
    if (TYPE == INT48 || TYPE == SHAPE) {
        let e = word >> 1u;
        if (e < params.count) { y[word] = x[(walk(e) << 1u) | (word & 1u)]; }
        return;
    }
    let lanes = lanes_of(TYPE);
    let start = word * lanes;
    // The second test is for a product that does not fit.
    if (start >= params.count || word > params.count) { return; }
    var bits = 0u;
    var keep = 0u;
    for (var k = 0u; k < lanes; k++) {
        if (k < params.count - start) {
            bits |= place(TYPE, fetch(walk(start + k)), k);
        } else {
            keep |= place(TYPE, lane_mask(TYPE), k);
        }
    }
    if (keep != 0u) { bits |= y[word] & keep; }
    y[word] = bits;
}

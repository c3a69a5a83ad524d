// y = c ? a : b on raw lanes, elementwise with broadcasting (docs/kernel-interface.md).

override WORKGROUP: u32 = 64;
override TYPE: u32;
override BROADCAST: u32;

struct Params {
    count: u32,
    d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32,
    c0: u32, c1: u32, c2: u32, c3: u32, c4: u32, c5: u32,
    a0: u32, a1: u32, a2: u32, a3: u32, a4: u32, a5: u32,
    b0: u32, b1: u32, b2: u32, b3: u32, b4: u32, b5: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> c: array<u32>;
@group(0) @binding(1) var<storage, read_write> a: array<u32>;
@group(0) @binding(2) var<storage, read_write> b: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;
@group(0) @binding(4) var<uniform> params: Params;

fn lane_of_result(element: u32) -> u32 {
    var c_at = element;
    var a_at = element;
    var b_at = element;
    if (BROADCAST != 0u) {
        let k5 = element % params.d5;
        let r4 = element / params.d5;
        let k4 = r4 % params.d4;
        let r3 = r4 / params.d4;
        let k3 = r3 % params.d3;
        let r2 = r3 / params.d3;
        let k2 = r2 % params.d2;
        let r1 = r2 / params.d2;
        let k1 = r1 % params.d1;
        let k0 = r1 / params.d1;
        c_at = k0 * params.c0 + k1 * params.c1 + k2 * params.c2 + k3 * params.c3 + k4 * params.c4 + k5 * params.c5;
        a_at = k0 * params.a0 + k1 * params.a1 + k2 * params.a2 + k3 * params.a3 + k4 * params.a4 + k5 * params.a5;
        b_at = k0 * params.b0 + k1 * params.b1 + k2 * params.b2 + k3 * params.b3 + k4 * params.b4 + k5 * params.b5;
    }
    var lane: u32;
    if (lane_bits(c[c_at >> 2u], BOOL, c_at) != 0u) {
        lane = lane_bits(a[a_at / lanes_of(TYPE)], TYPE, a_at);
    } else {
        lane = lane_bits(b[b_at / lanes_of(TYPE)], TYPE, b_at);
    }
    if (TYPE == BOOL) { return select(0u, 1u, lane != 0u); }
    return lane;
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
    var word = 0u;
    var foreign = 0u;
    for (var k = 0u; k < lanes; k++) {
        if (at * lanes + k < params.count) {
            word |= place(TYPE, lane_of_result(at * lanes + k), k);
        } else {
            foreign |= place(TYPE, lane_mask(TYPE), k);
        }
    }
    if (foreign != 0u) { word |= y[at] & foreign; }
    y[at] = word;
}

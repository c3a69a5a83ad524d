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

// Which elements of c (x), a (y) and b (z) belong to an element of the result. BROADCAST counts
// the dimensions that are left after collapsing.
fn operand_elements(element: u32) -> vec3<u32> {
    if (BROADCAST == 0u) { return vec3<u32>(element, element, element); }
    var rest = element;
    var at = vec3<u32>(0u, 0u, 0u);
    if (BROADCAST > 5u) {
        let inner = params.d1 * params.d2 * params.d3 * params.d4 * params.d5;
        at += (rest / inner) * vec3<u32>(params.c0, params.a0, params.b0);
        rest %= inner;
    }
    if (BROADCAST > 4u) {
        let inner = params.d2 * params.d3 * params.d4 * params.d5;
        at += (rest / inner) * vec3<u32>(params.c1, params.a1, params.b1);
        rest %= inner;
    }
    if (BROADCAST > 3u) {
        let inner = params.d3 * params.d4 * params.d5;
        at += (rest / inner) * vec3<u32>(params.c2, params.a2, params.b2);
        rest %= inner;
    }
    if (BROADCAST > 2u) {
        let inner = params.d4 * params.d5;
        at += (rest / inner) * vec3<u32>(params.c3, params.a3, params.b3);
        rest %= inner;
    }
    if (BROADCAST > 1u) {
        at += (rest / params.d5) * vec3<u32>(params.c4, params.a4, params.b4);
        rest %= params.d5;
    }
    return at + rest * vec3<u32>(params.c5, params.a5, params.b5);
}

fn lane_of(element: u32) -> u32 {
    let at = operand_elements(element);
    let c_at = at.x;
    let a_at = at.y;
    let b_at = at.z;
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
    let i = (group.y * groups.x + group.x) * WORKGROUP + local;
    store_word(i, TYPE);
}

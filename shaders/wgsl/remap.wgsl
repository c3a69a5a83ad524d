// PAD and TILE of raw lanes (docs/kernel-interface.md).

override WORKGROUP: u32 = 64;
override OP: u32;
override TYPE: u32;

struct Params {
    count: u32,
    d0: u32, d1: u32, d2: u32, d3: u32, d4: u32, d5: u32,
    e0: u32, e1: u32, e2: u32, e3: u32, e4: u32, e5: u32,
    s0: u32, s1: u32, s2: u32, s3: u32, s4: u32, s5: u32,
    p0: u32, p1: u32, p2: u32, p3: u32, p4: u32, p5: u32,
    fill: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

const TILE: u32 = 60u;

// A walk through the dimensions: what is left of the element number, the way in x so far, and
// whether some coordinate lies in the padding.
struct Walk { rest: u32, at: u32, outside: bool }

fn descend(walk: Walk, d: u32, e: u32, s: u32, p: u32) -> Walk {
    if (d == 1u) { return walk; }
    let c = walk.rest % d;
    let rest = walk.rest / d;
    if (OP == TILE) { return Walk(rest, walk.at + (c % e) * s, false); }
    let outside = c < p || c - p >= e;
    return Walk(rest, walk.at + (c - p) * s, walk.outside || outside);
}

fn lane_of(index: u32) -> u32 {
    var walk = Walk(index, 0u, false);
    walk = descend(walk, params.d5, params.e5, params.s5, params.p5);
    walk = descend(walk, params.d4, params.e4, params.s4, params.p4);
    walk = descend(walk, params.d3, params.e3, params.s3, params.p3);
    walk = descend(walk, params.d2, params.e2, params.s2, params.p2);
    walk = descend(walk, params.d1, params.e1, params.s1, params.p1);
    walk = descend(walk, params.d0, params.e0, params.s0, params.p0);
    if (walk.outside) { return params.fill; }
    let lane = lane_bits(x[walk.at / lanes_of(TYPE)], TYPE, walk.at);
    if (TYPE == BOOL && lane > 0u) { return 1u; }
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

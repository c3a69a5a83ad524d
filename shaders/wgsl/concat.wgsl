// Writes one input of a concatenation into its columns of y (docs/kernel-interface.md).

override WORKGROUP: u32 = 64;
override TYPE: u32;

struct Params { count: u32, row: u32, begin: u32, length: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

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
    let i = (group.y * groups.x + group.x) * WORKGROUP + local;
    let lanes = lanes_of(TYPE);
    if (i >= params.count / lanes + min(params.count % lanes, 1u)) { return; }
    if (lanes == 1u) {
        y[i / params.length * params.row + params.begin + i % params.length] = x[i];
        return;
    }
    var word = 0u;
    var written = 0u;
    for (var k = 0u; k < lanes; k++) {
        let e = i * lanes + k;
        if (e < params.count) {
            let column = e % params.row;
            // Columns in front of `begin` wrap to large numbers.
            let from_begin = column - params.begin;
            if (from_begin < params.length) {
                let lane = fetch(e / params.row * params.length + from_begin);
                word |= place(TYPE, lane, k);
                written |= place(TYPE, lane_mask(TYPE), k);
            }
        }
    }
    if (written == 0u) { return; }
    if (written != 0xffffffffu) { word |= y[i] & ~written; }
    y[i] = word;
}

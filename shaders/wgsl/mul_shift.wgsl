// The INT32 product of a and b, shifted right by an INT8 that lies in a buffer and rounded to
// nearest, halves towards plus infinity.

override WORKGROUP: u32 = 64;

struct Params { count: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> a: array<i32>;
@group(0) @binding(1) var<storage, read_write> b: array<i32>;
@group(0) @binding(2) var<storage, read_write> shift: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<i32>;
@group(0) @binding(4) var<uniform> params: Params;

fn shifted(p: i32, q: i32, amount: u32) -> i32 {
    var bits = complement(product(p, q));
    if (amount == 0u) { return bitcast<i32>(bits.x); }
    // One place less than wanted, then one that rounds: floor((floor(v / 2^(s-1)) + 1) / 2).
    let place = amount - 1u;
    let top = bitcast<i32>(bits.y);
    if (place >= 32u) {
        bits = bitcast<vec2<u32>>(vec2<i32>(top >> (place - 32u), top >> 31u));
    } else if (place > 0u) {
        bits.x = (bits.x >> place) | (bits.y << (32u - place));
        bits.y = bitcast<u32>(top >> place);
    }
    bits = added(bits, vec2<u32>(1u, 0u));
    return bitcast<i32>((bits.x >> 1u) | (bits.y << 31u));
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_invocation(group, groups, WORKGROUP, lane);
    if (i < params.count) { y[i] = shifted(a[i], b[i], extractBits(shift[0], 0u, 6u)); }
}

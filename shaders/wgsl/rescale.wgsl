// RESCALE of integers (docs/kernel-interface.md): (x - zero point) * multiplier / 2^shift + zero
// point. `scale` is [zero point of x, of y, multipliers, shifts].

override WORKGROUP: u32 = 64;
override X_TYPE: u32;
override Y_TYPE: u32;
override X_UNSIGNED: u32;
override Y_UNSIGNED: u32;
override TWICE: u32;

struct Params { count: u32, channels: u32, zero: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> scale: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

fn read_as(dtype: u32, is_unsigned: u32, bits: u32) -> i32 {
    let lane = bits & lane_mask(dtype);
    if (is_unsigned != 0u) { return bitcast<i32>(lane); }
    return widen_int(dtype, lane);
}

fn product_48(e: u32, multiplier: i32) -> Wide {
    let stored = vec2<u32>(x[e * 2u], x[e * 2u + 1u]);
    let negative = stored.y >= 0x80000000u;
    let v = complement(Wide(stored, negative));
    let m = absolute(multiplier);
    return Wide(full_product(v.x, m) + vec2<u32>(0u, v.y * m), negative != (multiplier < 0));
}

// Element e, whose word of x is `holder` (which INT48 does not use).
fn rescaled(e: u32, holder: u32) -> u32 {
    let channel = e % params.channels;
    let multiplier = bitcast<i32>(scale[channel + 2u]);
    let shift = scale[params.channels + channel + 2u];
    var value = 0;
    if (X_TYPE == INT48) {
        value = scaled_down(product_48(e, multiplier), shift, false);
    } else {
        let stored = lane_bits(holder, X_TYPE, e);
        let centred = read_as(X_TYPE, X_UNSIGNED, stored) - read_as(X_TYPE, X_UNSIGNED, scale[0]);
        value = scaled_down(product(centred, multiplier), shift, TWICE != 0u);
    }
    if (Y_TYPE == INT32) { return bitcast<u32>(value); }
    let top = bitcast<i32>(lane_mask(Y_TYPE) >> (1u - Y_UNSIGNED));
    let bottom = select(-top - 1, 0, Y_UNSIGNED == 1u);
    let zero_point = read_as(Y_TYPE, Y_UNSIGNED, scale[1]);
    // Far beyond both ends, yet small enough to add the zero point to.
    let near = clamp(value, -0x100000, 0x100000);
    return bitcast<u32>(clamp(near + zero_point, bottom, top)) & lane_mask(Y_TYPE);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * WORKGROUP + local;
    let lanes = lanes_of(Y_TYPE);
    if (i >= params.count / lanes + min(params.count % lanes, 1u)) { return; }
    // As many lanes on both sides: one load gives all of them.
    let aligned = lanes_of(X_TYPE) == lanes && X_TYPE != INT48;
    var holder = 0u;
    if (aligned) { holder = x[i]; }
    var word = 0u;
    var keep = 0u;
    for (var k = 0u; k < lanes; k++) {
        let e = i * lanes + k;
        if (e < params.count) {
            if (!aligned && X_TYPE != INT48) { holder = x[e / lanes_of(X_TYPE)]; }
            word |= place(Y_TYPE, rescaled(e, holder), k);
        } else {
            keep |= place(Y_TYPE, lane_mask(Y_TYPE), k);
        }
    }
    if (keep != 0u) { word |= y[i] & keep; }
    y[i] = word;
}

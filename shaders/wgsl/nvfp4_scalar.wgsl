// NVFP4 product with strict sums (docs/nvfp4.md, "The strict sum"): a team of 32 lanes makes one
// row of the weights by TOKENS (1 or 4) tokens.
//
// Lane l takes blocks l, l + 32, ...: products with the codes are added in order from +0, a
// block's sum times its scale goes to the lane's sum; lanes are then added in halves. The numbers
// of up to four tokens lie in one vector.

override WORKGROUP: u32 = 64;
override TOKENS: u32;
override ACTIVATION: u32;

struct Params {
    teams: u32,
    columns: u32,
    m: u32,
    n: u32,
    k: u32,
    x_at: u32,
    w_at: u32,
    s_at: u32,
    t_at: u32,
    b_at: u32,
    r_at: u32,
    y_at: u32,
    w_step: u32,
    t_step: u32,
    t_row: u32,
    b_step: u32,
    extras: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> packed: array<u32>;
@group(0) @binding(2) var<storage, read_write> scales: array<u32>;
@group(0) @binding(3) var<storage, read_write> tensor_scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> residual: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
@group(0) @binding(7) var<uniform> params: Params;

var<workgroup> meeting: array<vec4<f32>, 64>;

fn r4(v: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) ^ vec4<u32>(params.zero));
}

// E2M1: magnitudes below 1 are 0 and 0.5, the others have an exponent above that of 0.5.
fn weight_of(nibble: u32) -> f32 {
    let size = nibble & 7u;
    let small = select(0u, 0x3f000000u, size == 1u);
    let bits = select(0x3f000000u + size * 0x00400000u, small, size < 2u);
    return float_of(bits | ((nibble << 28u) & 0x80000000u));
}

// E4M3 has a bias of 7; what lies below its least exponent counts 2^-9 each.
fn block_scale(code: u32) -> f32 {
    let fraction = code & 7u;
    let exponent = (code >> 3u) & 15u;
    var bits = ((exponent + 120u) << 23u) | (fraction << 20u);
    if (exponent == 0u) { bits = bits_of(r_mul(f32(fraction), 0.001953125)); }
    if (exponent == 15u && fraction == 7u) { bits = 0x7fc00000u; }
    return float_of(bits | ((code & 0x80u) << 24u));
}

fn one_step(sum: f32, at: u32, w: f32) -> f32 { return r_add(sum, r_mul(x[at], w)); }

fn four_step(sum: vec4<f32>, at: vec4<u32>, w: f32) -> vec4<f32> {
    return r4(sum + r4(vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]) * w));
}

fn activated(v: f32) -> f32 {
    if (ACTIVATION == 1u) {
        // A constant -0 becomes +0 on NVIDIA: WGSL has no way to ask for its sign.
        if (bits_of(v) == 0xff800000u) { return float_of(0x80000000u ^ params.zero); }
        return r_mul(v, strict_sigmoid(v));
    }
    if (ACTIVATION == 2u) { return strict_sigmoid(v); }
    if (ACTIVATION == 3u && !is_nan(v)) {
        if (bits_of(v) > 0x7fffffffu) { return 0.0; }
        return r_mul(v, v);
    }
    return v;
}

fn store(sum: f32, token: u32, row: u32) {
    let element = token * params.n + row;
    let factor = tensor_scale[params.t_at + token * params.t_step + row * params.t_row];
    var v = r_mul(sum, factor);
    if ((params.extras & 1u) != 0u) {
        v = r_add(v, bias[params.b_at + token * params.b_step + row]);
    }
    v = activated(v);
    if ((params.extras & 2u) != 0u) { v = r_add(v, residual[params.r_at + element]); }
    if (is_nan(v)) { v = nan_value(); }
    y[params.y_at + element] = v;
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = linear_invocation(group, groups, WORKGROUP, local) / 32u;
    let lane = local % 32u;
    let team = min(number, params.teams - 1u);
    let first = (team / params.columns) * TOKENS;
    let row = team % params.columns;
    let blocks = params.k / 16u;
    let line = (first * params.w_step + row) * blocks;
    let last = params.m - 1u;
    let tokens = min(vec4<u32>(first, first + 1u, first + 2u, first + 3u), vec4<u32>(last));
    let starts = params.x_at + tokens * params.k;

    var sums = vec4<f32>();
    for (var block = lane; block < blocks; block += 32u) {
        let number_of_block = line + block;
        let word = scales[params.s_at + number_of_block / 4u];
        let scale = block_scale((word >> (8u * (number_of_block % 4u))) & 255u);
        var inner = vec4<f32>();
        for (var half = 0u; half < 2u; half++) {
            let codes = packed[params.w_at + 2u * number_of_block + half];
            let column = 16u * block + 8u * half;
            if (TOKENS == 1u) {
                for (var j = 0u; j < 8u; j++) {
                    inner.x = one_step(inner.x, starts.x + column + j, weight_of(codes >> (4u * j)));
                }
            } else {
                for (var j = 0u; j < 8u; j++) {
                    inner = four_step(inner, starts + column + j, weight_of(codes >> (4u * j)));
                }
            }
        }
        sums = r4(sums + r4(inner * scale));
    }

    meeting[local] = sums;
    for (var step = 16u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (lane < step) { meeting[local] = r4(meeting[local] + meeting[local + step]); }
    }
    workgroupBarrier();
    let token = first + lane;
    if (lane < TOKENS && token < params.m && number < params.teams) {
        store(meeting[local - lane][lane], token, row);
    }
}

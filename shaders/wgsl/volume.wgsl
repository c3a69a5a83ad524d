// Integer convolutions over volumes: parameters, operands, and where their pixels and taps lie. The
// kernel has OP.

struct Params {
    count: u32, columns: u32, tiles: u32,
    id: u32, ih: u32, iw: u32, ic: u32,
    od: u32, oh: u32, ow: u32, oc: u32,
    kh: u32, kw: u32,
    z_first: u32, z_last: u32, y_first: u32, y_last: u32,
    x_first: u32, x_last: u32, c_first: u32, c_last: u32,
    sz: u32, sy: u32, sx: u32,
    dz: u32, dy: u32, dx: u32,
    pad_front: u32, pad_top: u32, pad_left: u32,
    bias_step: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> w: array<u32>;
@group(0) @binding(2) var<storage, read_write> bias: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<i32>;
@group(0) @binding(4) var<uniform> params: Params;

// The input coordinate under tap `k` of output coordinate `at`, or `size` when there is none.
fn source(at: u32, k: u32, stride: u32, dilation: u32, pad: u32, size: u32) -> u32 {
    if (OP == 10u) {
        let distance = at - k - pad;
        if (distance % stride != 0u) { return size; }
        return min(distance / stride, size);
    }
    return min(at * stride + k * dilation - pad, size);
}

fn pixel_of(number: u32) -> vec3<u32> {
    let line = number / params.ow;
    return vec3<u32>(number % params.ow, line % params.oh, line / params.oh);
}

// Whether another dispatch made the sums of the taps and channels in front.
fn continues() -> bool {
    return max(max(params.z_first, params.y_first), max(params.x_first, params.c_first)) > 0u;
}

// MATMUL of integers: parameters and operands (docs/kernel-interface.md).

struct Params {
    count: u32, tiles: u32,
    h: u32, c: u32, w: u32, row: u32,
    c_first: u32, c_last: u32,
    zero: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> zeros: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<i32>;
@group(0) @binding(4) var<uniform> params: Params;

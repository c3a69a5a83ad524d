// Linear work: one number for each invocation (docs/kernel-interface.md).

fn linear_invocation(group: vec3<u32>, groups: vec3<u32>, width: u32, lane: u32) -> u32 {
    return (group.y * groups.x + group.x) * width + lane;
}

// v, unchanged, but not made of parameters alone: lavapipe would compile a larger shader anew for
// every set of parameters that decide a loop bound or a condition. No dispatch has 2^31 groups.
fn run_time(v: u32, groups: vec3<u32>) -> u32 { return v | (groups.z >> 31u); }

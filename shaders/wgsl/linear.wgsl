// Linear work: one number for each invocation (docs/kernel-interface.md).

fn linear_invocation(group: vec3<u32>, groups: vec3<u32>, width: u32, lane: u32) -> u32 {
    return (group.y * groups.x + group.x) * width + lane;
}

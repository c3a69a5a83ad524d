// Linear work: one number for each invocation (docs/kernel-interface.md).

uint invocation() {
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    return group * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
}

// v, unchanged, as a value that no driver can take for a constant: it also depends on the
// work-group count, which never reaches 2^31.
uint run_time(uint v) { return v + (gl_NumWorkGroups.z >> 31); }

#version 460
// y[tile, column] = x[tile, column] + tile; a tiled kernel for the backend's own tests.
layout(local_size_x_id = 0) in;
layout(set = 0, binding = 0) buffer X { uint x_words[]; };
layout(set = 0, binding = 1) buffer Y { uint y_words[]; };
layout(push_constant) uniform Params { uint columns; uint tiles; };

void main() {
    uint column = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint tile = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    if (column >= columns || tile >= tiles) {
        return;
    }
    uint i = tile * columns + column;
    y_words[i] = x_words[i] + tile;
}

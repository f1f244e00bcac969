//! Tests of the command as users and scripts run it. They are one binary, because each binary links all libraries.

mod cast;
mod cast_agent;
mod cast_applications;
mod cast_edges;
mod cast_floods;
mod cast_manifest;
mod cast_obstacles;
mod cast_pauses;
mod cast_restarts;
mod casts;
mod command;
mod common;
mod explore;
mod image;
mod imaging;
mod labels;
mod labels_ways;
mod paper;
mod paths;
mod reduce;
mod reducing;
mod rpc;
mod size;
mod switch;
mod testbed;

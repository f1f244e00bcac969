//! Rules on made-up points, and the shipped claims.

# The same image without Docker: make image.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
ARG TARGETARCH=
RUN GOARCH=$TARGETARCH make build VERSION=$VERSION

# One static binary. Mounting as root needs no fusermount3, only /dev/fuse, which a privileged container has.
FROM scratch
COPY --from=build /src/bin/lockfs /usr/local/bin/lockfs
ENTRYPOINT ["/usr/local/bin/lockfs"]
